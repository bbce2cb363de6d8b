// A WebSocket server and client of another make, through a gateway.
//
//     node websocket.mjs serve
//     node websocket.mjs call URL ADDRESS [ROOT]

import { readFileSync } from "node:fs";
import net from "node:net";
import tls from "node:tls";
import { WebSocket, WebSocketServer } from "ws";

const [what, url, address, root] = process.argv.slice(2);

if (what === "serve") {
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: true });
  server.on("connection", (socket) => {
    socket.on("message", (message, binary) => {
      if (!binary && message.toString() === "close") socket.close(4000, "bye");
      else socket.send(message, { binary });
    });
  });
  server.on("listening", () => {
    const { port } = server.address();
    const line = { message: "listening", listener: "ws", address: `127.0.0.1:${port}` };
    console.error(JSON.stringify(line));
  });
} else {
  const [host, port] = address.split(":");
  const servername = new URL(url).hostname;
  const createConnection = () =>
    root
      ? tls.connect({ host, port, servername, ca: readFileSync(root), ALPNProtocols: ["http/1.1"] })
      : net.connect({ host, port });
  const socket = new WebSocket(url, { createConnection, perMessageDeflate: true });
  const large = Buffer.alloc(1 << 20, "x");
  const sent = [Buffer.from("hello"), large, Buffer.from([0, 255])];
  let nth = 0;
  socket.on("open", () => socket.send(sent[0]));
  socket.on("message", (message) => {
    if (!message.equals(sent[nth])) throw new Error(`message ${nth} came back as another`);
    nth += 1;
    if (nth < sent.length) socket.send(sent[nth]);
    else socket.ping("still there");
  });
  socket.on("pong", () => socket.send("close"));
  socket.on("close", (code, reason) => {
    if (code !== 4000 || reason.toString() !== "bye") throw new Error(`closed with ${code}`);
    console.log("ok");
  });
}
