// An identity provider for each public name that it is called by: the certified `oidc-provider`,
// behind a gateway that it believes. Prints where it listens, as JSON.
//
//     identity_provider.mjs
//
// Its user is signed in and agrees without being asked. Access tokens for the resource `API` are
// JWTs that name a workspace and an organisation.

import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const API = "https://api.example.com";

// Names are the test's own; nobody else may have a provider made for theirs.
const INSTANCES_MAX = 8;

const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
const key = { ...privateKey.export({ format: "jwk" }), kid: "test", use: "sig", alg: "ES256" };

const configuration = {
  clients: [
    {
      client_id: "app",
      client_secret: "a-secret-of-the-test",
      redirect_uris: ["https://app.example.com/callback"],
      grant_types: ["authorization_code", "refresh_token", "client_credentials"],
      id_token_signed_response_alg: "ES256",
    },
  ],
  claims: { openid: ["sub"], email: ["email"] },
  cookies: { keys: ["a-key-of-the-test"] },
  extraTokenClaims: () => ({ workspace: "ws_acme", organisation: "org_acme" }),
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    introspection: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: () => ({
        scope: "read",
        audience: API,
        accessTokenFormat: "jwt",
        jwt: { sign: { alg: "ES256" } },
      }),
    },
  },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.com` }),
  }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  issueRefreshToken: () => true,
  jwks: { keys: [key] },
  pkce: { required: () => true },
  routes: {
    authorization: "/oauth/v2/authorize",
    introspection: "/oauth/v2/introspect",
    jwks: "/oauth/v2/keys",
    token: "/oauth/v2/token",
    userinfo: "/oidc/v1/userinfo",
  },
};

const providers = new Map();

function providerOf(request) {
  // The gateway itself asks by an address: about tokens of the first name, which it alone knows.
  const named = !request.headers["x-forwarded-host"].startsWith("127.0.0.1");
  if (!named) return providers.values().next().value;
  const issuer = `${request.headers["x-forwarded-proto"]}://${request.headers["x-forwarded-host"]}`;
  if (!providers.has(issuer)) {
    if (providers.size === INSTANCES_MAX) throw new Error("too many public names");
    const provider = new Provider(issuer, configuration);
    provider.proxy = true; // X-Forwarded-* are the gateway's word.
    providers.set(issuer, provider);
  }
  return providers.get(issuer);
}

async function interact(provider, request, response) {
  const { prompt, params, session } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    await provider.interactionFinished(request, response, { login: { accountId: "alice" } });
    return;
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope);
  const consent = { grantId: await grant.save() };
  const merged = { mergeWithLastSubmission: true };
  await provider.interactionFinished(request, response, { consent }, merged);
}

const server = createServer(async (request, response) => {
  try {
    const provider = providerOf(request);
    if (request.url.startsWith("/interaction/")) await interact(provider, request, response);
    else await provider.callback()(request, response);
  } catch (error) {
    response.writeHead(500).end(String(error));
  }
});
server.listen(0, "127.0.0.1", () => {
  console.log(JSON.stringify({ listening: `127.0.0.1:${server.address().port}` }));
});
