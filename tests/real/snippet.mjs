// Runs docs/verify/verify.mjs as it stands. Usage: snippet.mjs SNIPPET SECRET SIGNATURE BODY.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [snippet, secret, signature, body] = process.argv.slice(2);
const { verify } = await import(pathToFileURL(snippet));
console.log(verify(secret, signature, readFileSync(body)));
