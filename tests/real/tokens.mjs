// Makes tokens with the package jose of npm: good ones, and some that are not.
//
// Usage: tokens.mjs ISSUER AUDIENCE. Prints {"jwks": …, "good": {name: token}, "bad": …}.

import { SignJWT, UnsecuredJWT, exportJWK, generateKeyPair } from 'jose'

const [issuer, audience] = process.argv.slice(2)
const keys = []
const good = {}
const bad = {}

const token = (alg, kid, header = {}) =>
  new SignJWT({ workspace_id: 'ws_acme' })
    .setProtectedHeader({ alg, kid, typ: 'at+jwt', ...header })
    .setIssuer(issuer)
    .setAudience(audience)
    .setIssuedAt()
    .setSubject('someone')

for (const [alg, options] of [
  ['RS256', { modulusLength: 3072 }],
  ['ES256', {}],
  ['Ed25519', {}],
]) {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true, ...options })
  const kid = `key of ${alg}`
  keys.push({ ...(await exportJWK(publicKey)), kid, alg, use: 'sig' })
  good[alg] = await token(alg, kid).setExpirationTime('5m').sign(privateKey)
  if (alg === 'Ed25519') {
    good.EdDSA = await token('EdDSA', kid).setExpirationTime('5m').sign(privateKey)
  }
  bad[`${alg} expired`] = await token(alg, kid).setExpirationTime('-5m').sign(privateKey)
  bad[`${alg} not yet`] = await token(alg, kid)
    .setExpirationTime('5m').setNotBefore('2m').sign(privateKey)
  bad[`${alg} of another key's name`] = await token(alg, 'key of RS256' === kid ? 'x' : 'key of RS256')
    .setExpirationTime('5m').sign(privateKey)
}

for (const alg of ['ES384', 'PS256', 'RS512']) {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true })
  keys.push({ ...(await exportJWK(publicKey)), kid: alg, alg, use: 'sig' })
  bad[alg] = await token(alg, alg).setExpirationTime('5m').sign(privateKey)
}

bad.none = new UnsecuredJWT({ workspace_id: 'ws_acme' })
  .setIssuer(issuer).setAudience(audience).setExpirationTime('5m').encode()

console.log(JSON.stringify({ jwks: { keys }, good, bad }))
