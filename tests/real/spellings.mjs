// Asks for names as programs in Node do, and prints the target of each request.
const base = process.argv[2];
const names = ["a/b", "urn:isbn:1", "~ada", "100%", "a b", "é", "https://a.example/b?c=d#e", "a;b,c"];
const urls = names.map((name) => `${base}/${encodeURIComponent(name)}`);
urls.push(`${base}/`, `${base}/users/`, new URL("x/../y/", `${base}/`).href);
for (const text of urls) {
  const url = new URL(text);
  const answer = await fetch(url);
  if (answer.status !== 200) throw new Error(`${answer.status} for ${text}`);
  await answer.text();
  console.log(url.pathname + url.search);
}
