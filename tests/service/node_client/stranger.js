// A client that has no code of this project. It learns every message from the coordinator's own reflection, does one of everything, and
// writes what it saw as one JSON object. Usage: node stranger.js ADDRESS
"use strict";

const path = require("path");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const OPTIONS = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true };
const address = process.argv[2];
const credentials = grpc.credentials.createInsecure();
const seen = {};

function packaged(module, ...parts) {
  const folder = path.join(__dirname, "node_modules", ...module.split("/"));
  return grpc.loadPackageDefinition(protoLoader.loadSync(path.join(folder, ...parts), OPTIONS));
}

function unary(client, method, request, metadata = new grpc.Metadata()) {
  return new Promise((resolve, reject) =>
    client[method](request, metadata, { deadline: Date.now() + 20000 }, (error, reply) => (error ? reject(error) : resolve(reply)))
  );
}

function readAll(stream) {
  return new Promise((resolve, reject) => {
    const replies = [];
    stream.on("data", (reply) => replies.push(reply));
    stream.on("end", () => resolve(replies));
    stream.on("error", reject);
  });
}

function first(stream) {
  return new Promise((resolve, reject) => {
    stream.once("data", (reply) => {
      stream.on("error", () => {});
      stream.cancel();
      resolve(reply);
    });
    stream.once("error", reject);
  });
}

async function reflect(service) {
  const { grpc: { reflection: { v1alpha } } } = packaged("@grpc/reflection", "build", "proto", "grpc", "reflection", "v1alpha", "reflection.proto");
  const client = new v1alpha.ServerReflection(address, credentials);
  const ask = async (request) => {
    const stream = client.ServerReflectionInfo();
    const replies = readAll(stream);
    stream.write(request);
    stream.end();
    return (await replies)[0];
  };
  seen.services = (await ask({ list_services: "" })).list_services_response.service.map((each) => each.name).sort();
  const files = new Map();
  const load = async (reply) => {
    for (const data of reply.file_descriptor_response.file_descriptor_proto) {
      const key = data.toString("base64");
      if (files.has(key)) continue;
      files.set(key, data);
    }
  };
  await load(await ask({ file_containing_symbol: service }));
  for (const needed of ["edge/rpc/v1/budget.proto", "edge/rpc/v1/call.proto", "edge/rpc/v1/step.proto"]) {
    await load(await ask({ file_by_filename: needed }));
  }
  client.close();
  return fileSet([...files.values()]);
}

// A FileDescriptorSet is its files, each as field 1 with a length.
function fileSet(files) {
  const parts = [];
  for (const file of files) {
    const head = [0x0a];
    let length = file.length;
    while (length > 127) {
      head.push((length & 127) | 128);
      length >>>= 7;
    }
    head.push(length);
    parts.push(Buffer.from(head), file);
  }
  return Buffer.concat(parts);
}

async function main() {
  const { grpc: { health: { v1: health } } } = packaged("grpc-health-check", "proto", "health", "v1", "health.proto");
  const probe = new health.Health(address, credentials);
  seen.check = (await unary(probe, "Check", { service: "" })).status;
  seen.checkDevice = (await unary(probe, "Check", { service: "edge.rpc.v1.DeviceService" })).status;
  seen.watch = (await first(probe.Watch({ service: "edge.rpc.v1.DeviceService" }))).status;
  probe.close();

  const definition = protoLoader.loadFileDescriptorSetFromBuffer(await reflect("edge.rpc.v1.DeviceService"), OPTIONS);
  const { edge: { rpc: { v1 } } } = grpc.loadPackageDefinition(definition);
  const device = new v1.DeviceService(address, credentials);
  const metadata = new grpc.Metadata();
  metadata.set("device-id", "stranger");
  const call = (key, text, more = {}) => ({
    call_key: key, task: "math", prompt_id: "p", help_units: 1, max_output_tokens: 20,
    messages: [{ role: "ROLE_USER", content: text }], ...more,
  });

  const registered = await unary(device, "RegisterDevice", { agent_version: "node", protocol_version: 1, tasks: ["math"] }, metadata);
  seen.registered = { device_id: registered.device_id, task: registered.tasks[0].task };
  const completed = await unary(device, "Complete", call("k1", "unary"), metadata);
  seen.completed = { text: completed.completion.text, charged: completed.completion.charged_uusd, spent: completed.budget.spend_uusd };
  seen.streamed = (await readAll(device.StreamComplete({ call: call("k2", "streamed text") }, metadata))).map((each) => each.event);

  const many = [...Array(20).keys()].map((number) => call(`b${number}`, `item ${number}`));
  many.push(call("bad", "x", { max_output_tokens: 0 }));
  seen.many = {};
  await Promise.all(many.map(async (each) => {
    try {
      seen.many[each.call_key] = (await unary(device, "Complete", each, metadata)).completion.text;
    } catch (error) {
      seen.many[each.call_key] = `error ${error.code}`;
    }
  }));

  seen.watched = (await first(device.WatchBudget({ task: "math" }, metadata))).budget.calls;
  seen.cancelled = (await unary(device, "CancelCall", { call_key: "k1" }, metadata)).state;
  try {
    await unary(device, "OpenStep", { task: "math", step: 5, planned_prompts: 1, group_size: 1 }, metadata);
  } catch (error) {
    seen.refused = { code: grpc.status[error.code], details: error.metadata.get("grpc-status-details-bin").length };
  }
  device.close();
}

main().then(
  () => console.log(JSON.stringify(seen)),
  (error) => {
    console.error(error);
    process.exit(1);
  }
);
