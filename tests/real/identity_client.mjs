// A client of an identity provider, `openid-client`, which sees the provider only through a
// gateway. Prints what it saw as JSON.
//
//     identity_client.mjs ISSUER sign-in    every step of a sign-in, and the tokens' uses
//     identity_client.mjs ISSUER free       a thousand calls that no limit governs
//     identity_client.mjs ISSUER burst      token calls until one is refused
//     identity_client.mjs ISSUER token      one access token that is a JWT, and nothing else
//     identity_client.mjs ISSUER opaque     one that says nothing to whoever reads it

import dns from "node:dns";
import * as client from "openid-client";

// RFC 6761: these names are this machine, whatever its resolver thinks of them.
const { lookup } = dns;
dns.lookup = (name, ...rest) => lookup(name.endsWith(".localhost") ? "127.0.0.1" : name, ...rest);

const API = "https://api.example.com";
const CALLBACK = "https://app.example.com/callback";
const TOGETHER = 20;

const [issuer, task] = process.argv.slice(2);

async function discover() {
  const secret = "a-secret-of-the-test";
  const execute = [client.enableNonRepudiationChecks];
  if (issuer.startsWith("http:")) execute.push(client.allowInsecureRequests);
  const metadata = { id_token_signed_response_alg: "ES256" };
  const how = client.ClientSecretBasic(secret);
  return client.discovery(new URL(issuer), "app", metadata, how, { execute });
}

function limits(headers) {
  const named = [...headers].filter(([name]) => /^(x-ratelimit|ratelimit|retry-after)/.test(name));
  return Object.fromEntries(named);
}

// What a browser does: follows redirects and keeps cookies, until it is sent back to the client.
async function browse(url) {
  const cookies = new Map();
  const hops = [];
  for (let next = url; ; ) {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join("; ");
    const answer = await fetch(next, { redirect: "manual", headers: { cookie } });
    for (const line of answer.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(line);
      cookies.set(name, value);
    }
    const path = new URL(next).pathname;
    hops.push({ path, status: answer.status, limits: limits(answer.headers) });
    const location = answer.headers.get("location");
    if (!location) throw new Error(`${answer.status} ${await answer.text()}`);
    next = new URL(location, next);
    if (next.href.startsWith(CALLBACK)) return { back: next, hops, cookies };
    if (next.origin !== new URL(issuer).origin) throw new Error(`sent to ${next.origin}`);
  }
}

async function signIn() {
  const config = await discover();
  const metadata = config.serverMetadata();
  const pkceCodeVerifier = client.randomPKCECodeVerifier();
  const [expectedState, expectedNonce] = [client.randomState(), client.randomNonce()];
  const url = client.buildAuthorizationUrl(config, {
    redirect_uri: CALLBACK,
    scope: "openid email",
    code_challenge: await client.calculatePKCECodeChallenge(pkceCodeVerifier),
    code_challenge_method: "S256",
    state: expectedState,
    nonce: expectedNonce,
  });
  const { back, hops } = await browse(url);
  const checks = { pkceCodeVerifier, expectedState, expectedNonce };
  const tokens = await client.authorizationCodeGrant(config, back, checks);
  const { sub } = tokens.claims();
  const renewed = await client.refreshTokenGrant(config, tokens.refresh_token);
  const user = await client.fetchUserInfo(config, renewed.access_token, sub);
  const { active, client_id } = await client.tokenIntrospection(config, renewed.access_token);
  const { issuer: named, jwks_uri: keys } = metadata;
  return { issuer: named, keys, metadata, hops, user, active, client_id };
}

async function free(calls = 1_000) {
  const paths = ["/.well-known/openid-configuration", "/oauth/v2/keys"];
  const seen = { calls: 0, statuses: {}, limits: {} };
  const some = async (count) => {
    for (let nth = 0; nth < count; nth += 1) {
      const answer = await fetch(new URL(paths[nth % 2], issuer));
      await answer.arrayBuffer();
      seen.calls += 1;
      seen.statuses[answer.status] = (seen.statuses[answer.status] ?? 0) + 1;
      Object.assign(seen.limits, limits(answer.headers));
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, () => some(calls / TOGETHER)));
  return seen;
}

async function burst() {
  const config = await discover();
  const grant = () => client.clientCredentialsGrant(config, { scope: "read", resource: API });
  const answers = [];
  config[client.customFetch] = async (...call) => {
    const answer = await fetch(...call);
    answers.push({ status: answer.status, limits: limits(answer.headers) });
    return answer;
  };
  const [began, refusals] = [Date.now(), []];
  const until = async () => {
    while (refusals.length === 0) await grant().catch((error) => refusals.push(error));
  };
  await Promise.all(Array.from({ length: TOGETHER }, until));
  const { code, cause } = refusals[0];
  const admitted = answers.filter(({ status }) => status === 200).length;
  const refused = { code, status: cause?.status, limits: limits(cause?.headers ?? []) };
  const body = await cause.json().catch(() => null);
  return { first: answers[0], admitted, seconds: (Date.now() - began) / 1_000, refused, body };
}

async function token() {
  const config = await discover();
  const tokens = await client.clientCredentialsGrant(config, { scope: "read", resource: API });
  return { access_token: tokens.access_token };
}

async function opaque() {
  const tokens = await client.clientCredentialsGrant(await discover(), {});
  return { access_token: tokens.access_token };
}

const said = await { "sign-in": signIn, free, "still-free": () => free(100), burst, token, opaque }[task]();
console.log(JSON.stringify(said));
