// zigbee2mqtt and Node-RED by MQTT.js, with the options that they give it, at a broker of docs/guide/home.md.
//
// Arguments: mqbroker, its configuration, CA file. Prints one line a test; exit status 1 if any fails.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import mqtt from "mqtt";

const PATIENCE = 20_000;
const VERSIONS = { "3.1.1": 4, "5.0": 5 };

const [program, config, caFile] = process.argv.slice(2);
const ca = readFileSync(caFile);

const within = (promise, what) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} in time`)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

/** A broker as its own process, at the same ports after a restart. */
class Broker {
  async start() {
    this.process = spawn(program, ["--config", config, "--announce"], { stdio: ["ignore", "pipe", "ignore"] });
    this.ended = new Promise((done) => this.process.on("exit", done));
    this.urls = {};
    const ready = new Promise((done, fail) => {
      const lines = createInterface(this.process.stdout);
      lines.on("line", (line) => (line === "ready" ? done() : (this.urls[line.split(":")[0]] = line)));
      lines.on("close", () => fail(new Error("the broker has ended")));
    });
    await within(ready, "broker");
  }

  async stop(signal = "SIGTERM") {
    this.process.kill(signal);
    await within(this.ended, "end of the broker");
  }
}

const broker = new Broker();
process.on("exit", () => broker.process?.kill("SIGKILL"));
process.on("SIGTERM", () => process.exit(1));

/** A client of MQTT.js whose messages wait in order. */
class Program {
  static async connect(url, options, onConnect = async () => {}) {
    const one = new Program();
    one.messages = [];
    one.waiting = [];
    one.client = mqtt.connect(url, { ca, ...options });
    one.client.on("message", (topic, payload, packet) => {
      const message = { topic, payload, packet, text: payload.toString() };
      const waiting = one.waiting.shift();
      if (waiting) waiting(message);
      else one.messages.push(message);
    });
    const connected = new Promise((done, fail) => {
      one.client.on("connect", (connack) => {
        one.connack = connack;
        onConnect(one).then(done, fail);
      });
      one.client.on("error", fail);
      one.client.on("close", () => fail(new Error("closed")));
    });
    try {
      await within(connected, "CONNACK");
    } catch (error) {
      one.client.end(true);
      throw error;
    }
    return one;
  }

  async next() {
    return this.messages.shift() ?? (await within(new Promise((done) => this.waiting.push(done)), "message"));
  }

  publish(topic, payload, options) {
    return within(this.client.publishAsync(topic, payload, options), "acknowledgement");
  }

  subscribe(topic, options) {
    return within(this.client.subscribeAsync(topic, options), "SUBACK");
  }

  /** Ends without DISCONNECT. */
  breakOff() {
    return within(this.client.endAsync(true), "end");
  }

  leave() {
    return within(this.client.endAsync(), "end");
  }
}

const user = (name) => ({ username: name, password: `secret-${name}` });

const homeAssistant = async (url, ...topics) => {
  const assistant = await Program.connect(url, { ...user("homeassistant"), protocolVersion: 5, reconnectPeriod: 0 });
  for (const topic of topics) await assistant.subscribe(topic, { qos: 0 });
  return assistant;
};

const STATE = "zigbee2mqtt/bridge/state";
const state = (word) => JSON.stringify({ state: word });

const zigbee2mqtt = (url, protocolVersion, options = {}) => {
  const all = {
    ...user("zigbee2mqtt"),
    will: { topic: STATE, payload: Buffer.from(state("offline")), retain: true, qos: 1 },
    properties: { maximumPacketSize: 4194304 },
    protocolVersion,
    keepalive: 60,
    ...options,
  };
  return Program.connect(url, all, async (bridge) => {
    await bridge.publish(STATE, state("online"), { retain: true, qos: 1 });
    await bridge.subscribe("zigbee2mqtt/#");
  });
};

const nodeRed = (url, protocolVersion, clientId, options = {}) => {
  const all = {
    ...user("nodered"),
    clientId,
    keepalive: 60,
    clean: false,
    reconnectPeriod: 5000,
    rejectUnauthorized: true,
    protocolVersion,
    will: { topic: `nodered/${clientId}`, payload: "offline", qos: 1, retain: true },
    ...options,
  };
  if (protocolVersion === 5) {
    all.properties = { requestResponseInformation: true, requestProblemInformation: true, sessionExpiryInterval: 86400 };
  }
  return Program.connect(url, all);
};

/** The options of an `mqtt in` node. */
const mqttIn = (version) => (version === 5 ? { qos: 2, nl: false, rap: true, rh: 0 } : { qos: 2 });

const ofZigbee2mqtt = {
  async theListOfDevicesAndDiscoverySurviveARestartOfTheBroker(url, version) {
    const bridge = await zigbee2mqtt(url, version);
    const list = "x".repeat(3_000_000);
    await bridge.publish("zigbee2mqtt/bridge/devices", list, { retain: true, qos: 0 });
    await bridge.publish("homeassistant/light/0x0c/light/config", "{}", { retain: true, qos: 1 });
    // What it publishes comes back to it.
    while ((await bridge.next()).topic !== "zigbee2mqtt/bridge/devices");
    const back = new Promise((done) => bridge.client.once("connect", done));
    await broker.stop();
    await broker.start();
    const filters = ["homeassistant/+/+/+/config", "zigbee2mqtt/bridge/devices"];
    const assistant = await homeAssistant(broker.urls.mqtts, ...filters);
    const found = [await assistant.next(), await assistant.next()].map(({ topic, packet }) => [topic, packet.retain]);
    assert.deepEqual(found, [["homeassistant/light/0x0c/light/config", true], ["zigbee2mqtt/bridge/devices", true]]);
    await within(back, "return of the bridge");
    await bridge.leave();
    await assistant.leave();
  },
  async aBridgeThatIsGoneShowsAsOffline(url, version) {
    const bridge = await zigbee2mqtt(url, version);
    const assistant = await homeAssistant(url, STATE);
    assert.equal((await assistant.next()).text, state("online"));
    await bridge.breakOff();
    assert.equal((await assistant.next()).text, state("offline"));
    const later = await homeAssistant(url, STATE);
    const { text, packet } = await later.next();
    assert.deepEqual([text, packet.retain], [state("offline"), true]);
    for (const each of [assistant, later]) await each.leave();
  },
  async theBirthOfHomeAssistantReachesTheBridge(url, version) {
    const bridge = await zigbee2mqtt(url, version);
    await bridge.subscribe("homeassistant/status");
    const assistant = await homeAssistant(url, "zigbee2mqtt/lamp");
    await assistant.publish("homeassistant/status", "online", { qos: 0, retain: false });
    let message;
    do message = await bridge.next();
    while (message.topic !== "homeassistant/status");
    assert.equal(message.text, "online");
    await bridge.publish("zigbee2mqtt/lamp", '{"state":"ON"}', { qos: 0 });
    assert.equal((await assistant.next()).text, '{"state":"ON"}');
    for (const each of [bridge, assistant]) await each.leave();
  },
  async theBridgeFindsItsOldDiscovery(url, version) {
    const first = await zigbee2mqtt(url, version);
    await first.publish("homeassistant/sensor/0x0d/old/config", "{}", { retain: true, qos: 1 });
    await first.leave();
    const bridge = await zigbee2mqtt(url, version);
    await bridge.subscribe("homeassistant/#");
    let message;
    do message = await bridge.next();
    while (message.topic !== "homeassistant/sensor/0x0d/old/config");
    assert.ok(message.packet.retain);
    await within(bridge.client.unsubscribeAsync("homeassistant/#"), "UNSUBACK");
    await bridge.publish(message.topic, "", { retain: true, qos: 1 });
    await bridge.leave();
  },
  async aCommandWhileTheBridgeIsAwayIsLost(url, version) {
    const clientId = "the-bridge";
    const first = await zigbee2mqtt(url, version, { clientId });
    await first.breakOff();
    const assistant = await homeAssistant(url);
    await assistant.publish("zigbee2mqtt/lamp/set", "lost", { qos: 1 });
    const bridge = await zigbee2mqtt(url, version, { clientId });
    assert.equal(bridge.connack.sessionPresent, false);
    await assistant.publish("zigbee2mqtt/lamp/set", "ON", { qos: 1 });
    let message;
    do message = await bridge.next();
    while (message.topic !== "zigbee2mqtt/lamp/set");
    assert.equal(message.text, "ON");
    for (const each of [bridge, assistant]) await each.leave();
  },
  async theBridgeMayNotSwitchAPlug(url, version) {
    const bridge = await zigbee2mqtt(url, version);
    const assistant = await homeAssistant(url, "cmnd/#", "zigbee2mqtt/fence");
    const denied = bridge.publish("cmnd/plug/POWER", "ON", { qos: 1 });
    if (version === 5) await assert.rejects(denied, { code: 135 });
    else await denied;
    await bridge.publish("zigbee2mqtt/fence", "", { qos: 1 });
    assert.equal((await assistant.next()).topic, "zigbee2mqtt/fence");
    for (const each of [bridge, assistant]) await each.leave();
  },
  async aWrongPasswordIsRefused(url, version) {
    const options = { password: "secret", reconnectPeriod: 0 };
    await assert.rejects(zigbee2mqtt(url, version, options), { code: version === 5 ? 134 : 4 });
  },
};

const ofNodeRed = {
  async aFlowGetsWhatCameWhileItWasAway(url, version, name) {
    const topic = `tele/${name}/SENSOR`;
    const first = await nodeRed(url, version, name);
    assert.equal(first.connack.sessionPresent, false);
    await first.subscribe(topic, mqttIn(version));
    await first.leave();
    const assistant = await homeAssistant(url);
    for (let number = 0; number < 20; number += 1) await assistant.publish(topic, `${number}`, { qos: 2 });
    const again = await nodeRed(url, version, name);
    assert.ok(again.connack.sessionPresent);
    await again.subscribe(topic, mqttIn(version));
    await assistant.publish(topic, "fence", { qos: 2 });
    for (let number = 0; number < 20; number += 1) assert.equal((await again.next()).text, `${number}`);
    assert.equal((await again.next()).text, "fence");
    await again.leave();
    await assistant.leave();
    await (await nodeRed(url, version, name, { clean: true })).leave();
  },
  async birthCloseAndWillTellOfAFlow(url, version, name) {
    const topic = `nodered/${name}`;
    const assistant = await homeAssistant(url, topic);
    for (const ending of ["close", "break"]) {
      const flow = await nodeRed(url, version, name, { clean: true });
      await flow.publish(topic, "online", { qos: 1, retain: true });
      assert.equal((await assistant.next()).text, "online");
      if (ending === "close") {
        await flow.publish(topic, "closed", { qos: 1, retain: true });
        await flow.leave();
        assert.equal((await assistant.next()).text, "closed");
      } else {
        await flow.breakOff();
        assert.equal((await assistant.next()).text, "offline");
      }
    }
    await assistant.leave();
  },
  async flowsShareASubscription(url, version, name) {
    const flows = [];
    for (const each of ["one", "two"]) {
      const flow = await nodeRed(url, version, `${name}-${each}`, { clean: true });
      await flow.subscribe(`$share/flows/stat/${name}/+`, { qos: 1 });
      flows.push(flow);
    }
    const assistant = await homeAssistant(url);
    for (let number = 0; number < 20; number += 1) await assistant.publish(`stat/${name}/RESULT`, `${number}`, { qos: 1 });
    const seen = new Set();
    const collect = async () => {
      while (seen.size < 20) {
        for (const flow of flows) for (const { text } of flow.messages.splice(0)) {
          assert.ok(!seen.has(text), `${text} came twice`);
          seen.add(text);
        }
        await new Promise((done) => setTimeout(done, 10));
      }
    };
    await within(collect(), "all messages");
    for (const each of [...flows, assistant]) await each.leave();
  },
  async propertiesReachAFlow(url, version, name) {
    if (version !== 5) return;
    const flow = await nodeRed(url, version, name, { clean: true });
    await flow.subscribe("ask/#", { ...mqttIn(5), properties: { subscriptionIdentifier: 7 } });
    const properties = { responseTopic: `answer/${name}`, correlationData: Buffer.from("c"), userProperties: { room: "living" } };
    const assistant = await homeAssistant(url);
    await assistant.publish("ask/1", "?", { qos: 1, properties });
    const got = (await flow.next()).packet.properties;
    assert.equal(got.responseTopic, properties.responseTopic);
    assert.equal(got.subscriptionIdentifier, 7);
    assert.deepEqual({ ...got.userProperties }, properties.userProperties);
    for (const each of [flow, assistant]) await each.leave();
  },
  async overWebSocketThePathCounts(url, version, name) {
    if (!url.startsWith("wss:")) return;
    assert.ok(url.endsWith("/mqtt"));
    const without = url.slice(0, -"/mqtt".length);
    // MQTT.js does not tell of the broker's 404.
    await assert.rejects(nodeRed(without, version, name, { reconnectPeriod: 0 }), /closed/);
  },
};

let failed = 0;
await broker.start();
for (const [kind, schemes, tests] of [
  ["zigbee2mqtt", ["mqtt", "mqtts"], ofZigbee2mqtt],
  ["node-red", ["mqtt", "mqtts", "wss"], ofNodeRed],
]) {
  for (const scheme of schemes) for (const [number, version] of Object.entries(VERSIONS)) {
    for (const [test, body] of Object.entries(tests)) {
      const name = `home/${kind}/${scheme}/${number}/${test}`;
      try {
        await body(broker.urls[scheme], version, `${scheme}-${version}`);
        console.log(`ok ${name}`);
      } catch (error) {
        failed += 1;
        console.log(`FAILED ${name}\n${error.stack}`);
      }
    }
  }
}
await broker.stop();
console.log(`${failed} failed`);
process.exit(failed ? 1 : 0);
