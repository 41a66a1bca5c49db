import assert from "node:assert/strict";
import { test } from "node:test";
import { SseParser } from "../../gateway/console/core/sse.js";

const STREAM = "id: 7\nevent: start\ndata: {}\n\n:\n\nid: 8\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nid: 9\rdata:x\r\r:\nid: 12\n\n";
const EVENTS = [
  { id: "7", event: "start", data: "{}" }, { id: "8", event: "message", data: '{"a":\n1}' }, { id: "9", event: "message", data: "x" },
];

test("any_split_of_a_stream_gives_the_same_events", () => {
  for (let size = 1; size <= STREAM.length; size += 1) {
    const parser = new SseParser();
    const events = [];
    for (let at = 0; at < STREAM.length; at += size) events.push(...parser.feed(STREAM.slice(at, at + size)));
    assert.deepEqual(events, EVENTS, `pieces of ${size}`);
    assert.equal(parser.lastId, "12", "a comment moves the position");
  }
});

test("an_unfinished_event_is_not_given", () => {
  const parser = new SseParser();
  assert.deepEqual(parser.feed("id: 1\ndata: half"), []);
  assert.deepEqual(parser.feed("\n"), []);
  assert.equal(parser.feed("\n").length, 1);
});
