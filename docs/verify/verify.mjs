// Verifies a delivery: `signature` is the header Service-Signature, `body` the bytes as they came.
import { createHmac, timingSafeEqual } from "node:crypto";

export function verify(secret, signature, body, tolerance = 300) {
  const pairs = (signature ?? "").split(",").map((pair) => pair.split("=", 2));
  const t = pairs.find(([name]) => name === "t")?.[1] ?? "";
  if (!/^[0-9]+$/.test(t) || Math.abs(Date.now() / 1000 - Number(t)) > tolerance) return false;
  const expected = createHmac("sha256", secret).update(`${t}.`).update(body).digest();
  const given = pairs.filter(([name]) => name === "v1"); // two while a secret is rotated
  const bytes = given.map(([, value]) => Buffer.from(value ?? "", "hex"));
  return bytes.some((mac) => mac.length === expected.length && timingSafeEqual(mac, expected));
}
