//! Tools for agents: a customer's webhooks, deliveries, events and limits over the Model Context
//! Protocol. It acts with the token it was given and decides nothing about permissions itself.
//!
//! Areas stand in layers, the lowest first: each imports only from those earlier in this list.

// Data of others, delimited; what a tool returns.
mod output;

// When a destructive call may proceed.
mod consent;

// New secrets, in files.
mod secrets;

// For whom a call is made: a client, a workspace, what it may do.
mod caller;

// Whether an agent's token may be served.
mod reach;

// The tools: what each accepts, says of itself, and does.
mod tools;

// What an agent may read and be told besides.
mod prompts;
mod resources;

// The protocol: requests to tools, questions to people.
mod server;

// Agents that call over HTTP: who they are, and the listener.
mod agents;
mod http;

// The standard streams of one client.
mod streams;

// The command line.
mod app;
pub mod cli;
