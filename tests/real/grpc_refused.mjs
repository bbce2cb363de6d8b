// Calls a service of gRPC through a gateway, and prints what the client sees as JSON.
//
//     grpc_refused.mjs ADDRESS AUTHORITY CA.crt METHOD

import { readFileSync } from "node:fs";
import grpc from "@grpc/grpc-js";

const [address, authority, authorities, method] = process.argv.slice(2);
const credentials = grpc.credentials.createSsl(readFileSync(authorities));
const client = new grpc.Client(address, credentials, {
  "grpc.ssl_target_name_override": authority,
  "grpc.default_authority": authority,
});
const as = (bytes) => bytes;
const options = { deadline: Date.now() + 15_000 };
const seen = (error) => {
  const code = error ? grpc.status[error.code] : "OK";
  const metadata = error?.metadata.getMap();
  console.log(JSON.stringify({ code, details: error?.details, metadata }));
  client.close();
};
if (method === "unary") {
  client.makeUnaryRequest("/weir.test.Echo/Unary", as, as, Buffer.from("a"), options, seen);
} else {
  const call = client.makeBidiStreamRequest("/weir.test.Echo/Stream", as, as, null, options);
  call.on("error", seen);
  call.on("end", () => {});
  call.on("data", () => {});
  call.write(Buffer.from("a"));
}
