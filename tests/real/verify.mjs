// Verifies a delivery with the packages of npm: `stripe` or `standardwebhooks`.
//
// Usage: verify.mjs PACKAGE SECRET HEADERS.json BODY. Ends with 0 where the delivery holds.

import { readFileSync } from "node:fs";

const [name, secret, headersFile, bodyFile] = process.argv.slice(2);
const headers = JSON.parse(readFileSync(headersFile, "utf8"));
const body = readFileSync(bodyFile);

if (name === "stripe") {
  const { default: Stripe } = await import("stripe");
  const stripe = new Stripe("sk_test_unused");
  stripe.webhooks.signature.verifyHeader(body, headers["service-signature"], secret, 300);
} else if (name === "standardwebhooks") {
  const { Webhook } = await import("standardwebhooks");
  new Webhook(secret).verify(body, headers);
} else {
  throw new Error(`no package ${name}`);
}
console.log("verified");
