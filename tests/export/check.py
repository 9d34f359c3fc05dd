"""Reads exports with readers that are not gpurec's and compares them with the traces.

    pip install --target DIR perfetto        (once: the protobuf classes of Perfetto's traces)
    PYTHONPATH=DIR python3 check.py [--mutate] TRACE[,TRACE...] CHROME_JSON PERFETTO [CSV [REPORT_GPU_JSON]]

In: traces (.jsonl, or .zst if the program zstd is there), and what `gpurec export` made of them,
of all of them together if there are several. Out: what was compared, or what differs and status 1.
Of a trace with GPU work, what `gpurec report gpu --json` says has to be as in the exports too.
With --mutate the exports are damaged, each in one way after the other, and every damage must be
found: status 1 if one is not.

Everything is worked out here from the traces alone; nothing is taken from gpurec's own code. Times
are integers of nanoseconds, compared exactly.
"""

import collections
import copy
import csv
import datetime
import decimal
import io
import json
import random
import subprocess
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

Slice = collections.namedtuple("Slice", "track begin end name category depth parent args")
Mark = collections.namedtuple("Mark", "begin end name category args")


class Wrong(Exception):
    """An export that does not say what its trace says."""


def need(ok, *what):
    if not ok:
        raise Wrong(" ".join(str(word) for word in what))


def ns(number, scale):
    """A JSON number as nanoseconds; it must be a whole number of them."""
    exact = decimal.Decimal(number) * scale
    need(exact == int(exact), "a time is not exact:", number)
    return int(exact)


# ---- the traces ---------------------------------------------------------------------------------


def lines_of(path):
    data = open(path, "rb").read()
    if data[:4] == b"\x28\xb5\x2f\xfd":
        data = subprocess.run(["zstd", "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    for line in data.split(b"\n"):
        if line:
            yield json.loads(line, parse_float=decimal.Decimal)


PLACE = {"ts", "type", "name", "phase", "pid", "tid", "depth", "parent", "thread"}
AT_END = PLACE | {"event_id", "begin", "duration_us", "paused_us"}


def said(line, without):
    return {key: value for key, value in line.items() if key not in without and value != {}}


class Expected:
    """What exports of these traces have to hold."""

    def __init__(self, paths):
        self.slices, self.beside, self.instants = [], [], []
        self.counters = collections.Counter()
        self.flows, self.open = [], []
        self.lanes = collections.Counter()
        self.commands, self.kernel_threads = [], []
        self.rows = collections.Counter()
        self.threads = set()
        traces = [list(lines_of(path)) for path in paths]
        starts = [datetime.datetime.fromisoformat(trace[0]["start"]) for trace in traces]
        first = min(starts)
        self.wall_ns = round(first.timestamp() * 1000) * 1_000_000
        for index, (trace, start) in enumerate(zip(traces, starts)):
            offset = round((start - first) / datetime.timedelta(milliseconds=1)) * 1_000_000
            self.trace(index, trace, offset)

    def trace(self, index, lines, offset):
        open_calls, live, exits, told = {}, collections.defaultdict(dict), {}, {}
        begun = {}
        for line in lines:
            at = ns(line["ts"], 10**9) + offset
            kind, phase = line["type"], line.get("phase")
            thread = (index, line.get("pid"), line.get("tid"))
            if kind in ("stack", "device", "clock"):
                continue  # they are part of other events, or of none
            if phase == "B":
                open_calls[line["event_id"]] = (at, line)
                begun[line["event_id"]] = at
                self.threads.add(thread)
                caller = open_calls.get(line.get("parent"))
                if "request" in line and caller and caller[1]["type"] == "userspace":
                    self.flows.append((caller[0], at, line["event_id"], caller[1]["event_id"]))
                if "thread" in line:
                    self.kernel_threads.append(line["thread"])
            elif phase == "E":
                begin, started = open_calls.pop(line["begin"])
                if "duration_us" in line:
                    need(at - begin == ns(line["duration_us"], 1000), "the trace itself is wrong:", line)
                self.slice(index, begin, at, started, said(line, AT_END))
            elif kind in ("scheduler", "kernel"):
                args = said(line, PLACE | {"duration_us"})
                args.update(pid=line["pid"], tid=line["tid"])
                if "parent" in line:
                    args["parent"] = line["parent"]
                if "duration_us" in line:
                    begin = at - ns(line["duration_us"], 1000)
                    self.beside.append(Mark(begin, at, line["name"], kind, freeze(args)))
                else:
                    self.instant(at, line["name"], kind, args)
            elif kind == "gpu":
                args = said(line, PLACE | {"duration_us"})
                args["pid"] = line["pid"]
                if args["begin"] is None:
                    del args["begin"]
                else:
                    self.flows.append((begun[line["begin"]], at, line["event_id"], line["begin"]))
                self.beside.append(Mark(at, at + ns(line["duration_us"], 1000), line["name"], kind, freeze(args)))
                self.lanes[(line["pid"], f"GPU {line['device']} stream {line['stream']}")] += 1
            elif kind == "memory":
                live[line["pid"]][line["space"]] = line["total_allocated"]
                self.counters[(at, line["space"], line["total_allocated"])] += 1
                args = said(line, PLACE | {"op"})
                self.instant(at, line["op"], kind, {**args, "function": line["name"]})
            elif kind == "transfer":
                args = said(line, PLACE | {"direction", "duration_us"})
                self.instant(at, line["direction"], kind, {**args, "function": line["name"]})
            elif kind in ("xid", "lost"):
                args = said(line, PLACE)
                if kind == "xid":
                    args.update(pid=line["pid"], tid=line["tid"])
                self.instant(at, kind, kind, args)
            elif kind == "process":
                self.instant(at, line["name"], kind, None)
                if line["name"] == "exec":
                    self.commands.append((index, line["pid"], line["command"], line.get("rank")))
                if line["name"] == "exit":
                    exits[line["pid"]] = at
                if line["name"] in ("exec", "exit"):
                    for space, size in live.pop(line["pid"], {}).items():
                        if size:
                            self.counters[(at, space, 0)] += 1
            else:
                name = {"header": "recording begins", "end": "recording ends"}[kind]
                self.instant(at, name, kind, None)
                told = {call["begin"]: call for call in line.get("in_flight", [])}
            if phase != "B":
                self.rows[(kind, line["name"])] += 1
        for begin, started in open_calls.values():
            call = told.get(started["event_id"], {})
            if started["pid"] in exits:
                # It died with its process; the trace says for how long it had run.
                end = exits[started["pid"]]
                need(not call or call["died"] and end - begin == ns(call["duration_us"], 1000), "died:", call)
                self.slice(index, begin, end, started, {"died": True})
            else:
                need(not call.get("died"), "died:", call)
                self.open.append(started["event_id"])
                self.slice(index, begin, None, started, {})
            self.rows[(started["type"], started["name"])] += 1

    def slice(self, index, begin, end, line, ended):
        args = {**said(line, PLACE), **ended}
        track, parent = (index, line["pid"], line["tid"]), line.get("parent")
        found = Slice(track, begin, end, line["name"], line["type"], line["depth"], parent, freeze(args))
        self.slices.append(found)

    def instant(self, at, name, kind, args):
        self.instants.append((at, name, kind, args and freeze(args)))


def freeze(args):
    return json.dumps(plain(args), sort_keys=True)


def plain(value):
    """The same for both formats: a null and an empty list are told as text or not at all."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value] or {}
    if isinstance(value, decimal.Decimal):
        return float(value)
    return "null" if value is None else value


class Found:
    """What an export holds, whatever its format."""

    def __init__(self):
        self.slices, self.beside, self.instants = [], [], []
        self.counters = collections.Counter()
        self.flows, self.open = [], []
        self.lanes = collections.Counter()
        self.processes, self.threads = {}, {}


def compare(expected, found, what, renumbered):
    def numbers(slices):
        if not renumbered:
            return sorted((item._replace(track=item.track[-2:]) for item in slices), key=repr)
        # Merged traces may have the same pids, which the export keeps apart: what shares a
        # track has to share it, whatever its number.
        tracks = collections.defaultdict(list)
        for item in slices:
            tracks[item.track].append(repr(item._replace(track=None)))
        return sorted("\n".join(sorted(items)) for items in tracks.values())

    same(numbers(expected.slices), numbers(found.slices), what, "slices")
    same(sorted(expected.beside), sorted(found.beside), what, "interrupts, time off the CPU and GPU work")
    if not renumbered:
        same(sorted(expected.lanes.items()), sorted(found.lanes.items()), what, "lanes of streams")
    bare = [(at, name, kind, None if kind in ("process", "header", "end") else args)
            for at, name, kind, args in found.instants if kind != "note"]
    same(sorted(expected.instants, key=repr), sorted(bare, key=repr), what, "instants")
    same(sorted(expected.counters.items()), sorted(found.counters.items()), what, "counters")
    same(sorted(expected.flows), sorted(found.flows), what, "flows from calls to ioctls and GPU work")
    same(sorted(expected.open), sorted(found.open), what, "calls in flight")
    need(len(found.threads) >= len(expected.threads), what, "names too few threads")
    titles = list(found.processes.values())
    for _index, pid, command, rank in expected.commands:
        title = " ".join(command)[:100] if len(" ".join(command)) > 100 else " ".join(command)
        named = [name for name in titles if name.startswith(title)]
        has_events = any(thread[1] == pid for thread in expected.threads)
        need(named or not has_events, what, "has no process called", title)
        need(rank is None or not has_events or any(f"[rank {rank}]" in name for name in named),
             what, "does not say rank", rank)
    for name in expected.kernel_threads:
        need(name in {shown for _, shown in found.threads.values()}, what, "has no thread", name)


def same(expected, found, what, part):
    if expected == found:
        return
    missing = collections.Counter(map(repr, expected)) - collections.Counter(map(repr, found))
    excess = collections.Counter(map(repr, found)) - collections.Counter(map(repr, expected))
    first = [f"\n  {text}" for text in (list(missing)[:2] + ["instead of which:"] + list(excess)[:2])]
    raise Wrong(f"{what}: {sum(missing.values())} {part} are missing, {sum(excess.values())} are others:"
                + "".join(first))


# ---- Chrome -------------------------------------------------------------------------------------

NUMBER = (int, decimal.Decimal)
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def read_chrome(document):
    found = Found()
    need(isinstance(document.get("traceEvents"), list), "chrome: no traceEvents")
    need(document.get("displayTimeUnit") in ("ms", "ns"), "chrome: displayTimeUnit")
    timed = []
    for event in document["traceEvents"]:
        phase = event.get("ph")
        need(phase in set("BEXiCsfM"), "chrome: phase", phase)
        need(type(event.get("pid")) is int and type(event.get("tid")) is int, "chrome: pid and tid", event)
        need(phase in "EM" or isinstance(event.get("name"), str), "chrome: no name", event)
        if phase == "M":
            chrome_metadata(found, event)
        else:
            need(type(event.get("ts")) in NUMBER, "chrome: no ts", event)
            timed.append((ns(event["ts"], 1000), event))
    # As the viewers do: by time, what has the same time in the order of the file.
    timed.sort(key=lambda pair: pair[0])
    chrome_events(found, timed)
    return found


def chrome_metadata(found, event):
    need(event["name"] in METADATA, "chrome: unknown metadata", event)
    if event["name"] == "process_name":
        found.processes[event["pid"]] = event["args"]["name"]
    elif event["name"] == "thread_name":
        need(event["pid"] in found.processes, "chrome: a thread before its process", event)
        need(event["tid"] not in found.threads, "chrome: a tid given out twice", event)
        found.threads[event["tid"]] = (event["pid"], event["args"]["name"])


def chrome_events(found, timed):
    stacks, starts, ends, works = collections.defaultdict(list), {}, {}, {}
    for at, event in timed:
        phase, track = event["ph"], (event["pid"], event["tid"])
        if phase != "C":
            named = found.threads.get(event["tid"], (None,))[0] == event["pid"]
            need(named, "chrome: a track without a name", event)
        need(event["pid"] in found.processes, "chrome: a process without a name", event)
        args = event.get("args", {})
        if phase == "B":
            stacks[track].append((at, event))
        elif phase == "E":
            need(stacks[track], "chrome: an E without a B", event)
            begin, started = stacks[track].pop()
            close(found, track, begin, at, started["name"], started["cat"], stacks[track],
                  started["args"], args, lambda entry: entry[1]["args"]["event_id"])
        elif phase == "X":
            need(type(event.get("dur")) in NUMBER and event["dur"] >= 0, "chrome: dur", event)
            end = at + ns(event["dur"], 1000)
            found.beside.append(Mark(at, end, event["name"], event["cat"], freeze(args)))
            if event["cat"] == "gpu":
                found.lanes[found.threads[event["tid"]]] += 1
                # Work in one lane follows one another, or viewers nest it.
                need(at >= works.get(track, (0, None))[0], "chrome: GPU work overlaps in a lane", event)
                works[track] = (end, (at, event))
        elif phase == "i":
            need(event.get("s") in ("g", "p", "t"), "chrome: scope of an instant", event)
            found.instants.append((at, event["name"], event["cat"], freeze(args)))
        elif phase == "C":
            need(args and all(type(value) is int for value in args.values()), "chrome: counter", event)
            space = event["name"].removeprefix("live memory: ")
            found.counters[(at, space, args["bytes"])] += 1
        else:
            side = starts if phase == "s" else ends
            need(event["id"] not in side, "chrome: a flow id twice", event)
            around = stacks[track][-1] if stacks[track] else works.get(track, (0, None))[1]
            need(around, "chrome: a flow outside of every slice", event)
            need(phase == "s" or event.get("bp") == "e", "chrome: a flow that binds to the next slice", event)
            if phase == "f" and not stacks[track]:
                end, (begun, _) = works[track]
                need(at == begun + min(1, end - begun), "chrome: a flow may end at the slice before", event)
            side[event["id"]] = (track, around, event["name"], event["cat"])
    need(not any(stacks.values()), "chrome: a B without an E")
    need(starts.keys() == ends.keys(), "chrome: a flow with one end")
    for number, (_, to, *name) in ends.items():
        _, source, *other = starts[number]
        need(name == other, "chrome: the ends of a flow differ in name or category")
        ids = to[1]["args"]["event_id"], source[1]["args"]["event_id"]
        found.flows.append((source[0], to[0], *ids))


def close(found, track, begin, end, name, category, around, args, ended, id_of):
    if ended.pop("in_flight", False):
        found.open.append(args["event_id"])
        end = None
    parent = id_of(around[-1]) if around else None
    both = freeze({**args, **ended})
    found.slices.append(Slice(track, begin, end, name, category, len(around), parent, both))


# ---- Perfetto -----------------------------------------------------------------------------------

CLEARED, NEEDS = 1, 2


class Sequence:
    def __init__(self):
        self.valid = False
        self.clear()

    def clear(self):
        self.texts = {kind: {} for kind in ("event_categories", "event_names", "debug_annotation_names",
                                            "debug_annotation_string_values")}

    def learn(self, data):
        for kind, table in self.texts.items():
            for entry in getattr(data, kind):
                text = entry.str.decode() if hasattr(entry, "str") else entry.name
                need(entry.iid and entry.iid not in table, "perfetto: an iid twice", kind, entry)
                need(text not in table.values(), "perfetto: a text interned twice", kind, text)
                table[entry.iid] = text

    def text(self, kind, number):
        need(number in self.texts[kind], "perfetto: no text for", kind, number)
        return self.texts[kind][number]


def read_perfetto(trace, expected):
    found, tracks, events = Found(), {}, []
    sequences = collections.defaultdict(Sequence)
    clocks = [packet.clock_snapshot for packet in trace.packet if packet.HasField("clock_snapshot")]
    need(len(clocks) == 1, "perfetto: not one clock snapshot")
    need({clock.clock_id: clock.timestamp for clock in clocks[0].clocks} == {6: 0, 1: expected.wall_ns},
         "perfetto: the wall clock")
    for packet in trace.packet:
        if packet.HasField("clock_snapshot"):
            continue
        need(packet.trusted_packet_sequence_id, "perfetto: a packet of no sequence")
        sequence = sequences[packet.trusted_packet_sequence_id]
        if packet.sequence_flags & CLEARED:
            sequence.clear()
            need(packet.first_packet_on_sequence or sequence.valid, "perfetto: the first packet")
            sequence.valid = True
        # A reader drops what needs a state that it has not.
        need(sequence.valid, "perfetto: a packet before its sequence has a state")
        need(packet.sequence_flags & (NEEDS | CLEARED), "perfetto: sequence_flags")
        sequence.learn(packet.interned_data)
        if packet.HasField("track_descriptor"):
            descriptor(found, tracks, packet.track_descriptor)
        elif packet.HasField("track_event"):
            event = packet.track_event
            need(packet.HasField("timestamp") and event.track_uuid in tracks, "perfetto: an event of no track")
            events.append((packet.timestamp, event, annotations(sequence, event.debug_annotations),
                           *names(sequence, event)))
        else:
            raise Wrong(f"perfetto: a packet of another kind: {packet}")
    events.sort(key=lambda entry: entry[0])
    perfetto_events(found, tracks, events)
    return found


def descriptor(found, tracks, track):
    need(track.uuid, "perfetto: a track without uuid")
    need(not track.parent_uuid or track.parent_uuid in tracks, "perfetto: a track before its parent")
    need(track.uuid not in tracks or track.HasField("process"), "perfetto: a uuid twice")
    tracks[track.uuid] = track
    if track.HasField("process"):
        need(track.process.pid > 0, "perfetto: pid")
        others = [uuid for uuid, pid in found.process_uuids.items() if pid == track.process.pid and uuid != track.uuid]
        need(not others, "perfetto: a pid of two processes")
        found.process_uuids[track.uuid] = track.process.pid
        found.processes[track.process.pid] = track.process.process_name
    elif track.HasField("thread"):
        need(tracks[track.parent_uuid].process.pid == track.thread.pid, "perfetto: a thread of another process")
        need(track.thread.tid not in found.threads, "perfetto: a tid of two threads")
        found.threads[track.thread.tid] = (track.thread.pid, track.thread.thread_name)


Found.process_uuids = property(lambda self: self.__dict__.setdefault("_uuids", {}))


def names(sequence, event):
    name = event.name or (event.name_iid and sequence.text("event_names", event.name_iid)) or None
    categories = list(event.categories)
    categories += [sequence.text("event_categories", number) for number in event.category_iids]
    return name, categories


def annotations(sequence, items):
    result = {}
    for item in items:
        name = item.name or sequence.text("debug_annotation_names", item.name_iid)
        need(name not in result, "perfetto: an annotation twice", name)
        result[name] = annotation(sequence, item)
    return result


def annotation(sequence, item):
    kind = item.WhichOneof("value")
    if item.dict_entries:
        return annotations(sequence, item.dict_entries)
    if item.array_values:
        return [annotation(sequence, inner) for inner in item.array_values]
    if kind == "string_value_iid":
        return sequence.text("debug_annotation_string_values", item.string_value_iid)
    if kind == "pointer_value":
        return hex(item.pointer_value)
    return {} if kind is None else getattr(item, kind)


def perfetto_events(found, tracks, events):
    stacks, flows = collections.defaultdict(list), {}
    for at, event, args, name, categories in events:
        track, stack = tracks[event.track_uuid], stacks[event.track_uuid]
        if event.type == event.TYPE_COUNTER:
            need(track.HasField("counter") and track.counter.unit == track.counter.UNIT_SIZE_BYTES,
                 "perfetto: a counter that counts no bytes")
            space = track.name.removeprefix("live memory: ")
            found.counters[(at, space, event.counter_value)] += 1
            continue
        need(not track.HasField("counter"), "perfetto: an event on a counter's track")
        if event.type == event.TYPE_SLICE_BEGIN:
            need(name and len(categories) == 1, "perfetto: a slice without name or category")
            # A flow passes its slices by time: the call, then its ioctls.
            for number in event.flow_ids:
                source = flows.setdefault(number, (at, args["event_id"]))
                if source != (at, args["event_id"]):
                    found.flows.append((source[0], at, args["event_id"], source[1]))
            stack.append((at, name, categories[0], args))
        elif event.type == event.TYPE_SLICE_END:
            need(stack, "perfetto: an end without a begin")
            begin, name, category, started = stack.pop()
            if track.HasField("thread"):
                close(found, (track.thread.pid, track.thread.tid), begin, at, name, category, stack,
                      started, args, lambda entry: entry[3]["event_id"])
            else:
                need(not stack, "perfetto: slices beside threads nest")
                if category == "gpu":
                    found.lanes[(tracks[track.parent_uuid].process.pid, track.name)] += 1
                found.beside.append(Mark(begin, at, name, category, freeze({**started, **args})))
        elif event.type == event.TYPE_INSTANT:
            need(name and len(categories) == 1, "perfetto: an instant without name or category")
            found.instants.append((at, name, categories[0], freeze(args)))
        else:
            raise Wrong(f"perfetto: type {event.type}")
    for uuid, stack in stacks.items():
        thread = tracks[uuid].thread
        while stack:
            begin, name, category, started = stack.pop()
            close(found, (thread.pid, thread.tid), begin, None, name, category, stack, started,
                  {"in_flight": True}, lambda entry: entry[3]["event_id"])


# ---- CSV ----------------------------------------------------------------------------------------


def check_csv(expected, text):
    table = list(csv.DictReader(io.StringIO(text)))
    rows = collections.Counter((row["type"], row["name"]) for row in table)
    same(sorted(expected.rows.items()), sorted(rows.items()), "csv", "rows by type and name")
    calls, ids = [], {json.loads(item.args)["event_id"] for item in expected.slices}
    for row in table:
        need(None not in row and None not in row.values(), "csv: cells too many or too few", row)
        for key in ("args", "detail", "out", "more"):
            need(not row[key] or isinstance(json.loads(row[key]), dict), "csv: no JSON", row)
        if row["type"] in ("userspace", "kernel", "scheduler") and int(row["event_id"]) in ids:
            calls.append(row)
    by_id = collections.Counter()
    for item in expected.slices:
        args = json.loads(item.args)
        known = item.end is not None and not args.get("lost") and not args.get("died")
        duration = decimal.Decimal(item.end - item.begin) / 1000 if known else None
        by_id[(args["event_id"], item.begin, duration, item.name, item.track[1:])] += 1
    for row in calls:
        duration = decimal.Decimal(row["duration_us"]) if row["duration_us"] else None
        track = (int(row["pid"]), int(row["tid"]))
        by_id[(int(row["event_id"]), ns(row["start_s"], 10**9), duration, row["name"], track)] -= 1
    wrong = [key for key, count in by_id.items() if count > 0]
    need(not wrong, "csv: calls are missing or otherwise:", wrong[:2])


# ---- report gpu ---------------------------------------------------------------------------------


def check_report(expected, report):
    works = [item for item in expected.beside if item.category == "gpu"]
    known = [item for item in works if "begin" in json.loads(item.args)]
    need(len(report["streams"]) == len(expected.lanes), "report: another number of streams")
    lanes = collections.Counter()
    for stream in report["streams"]:
        lanes[(stream["pid"], f"GPU {stream['device']} stream {stream['stream']}")] += stream["work"]
    same(sorted(expected.lanes.items()), sorted(lanes.items()), "report", "streams")
    need(sum(device["work"] for device in report["devices"]) == len(works), "report: another number of records")
    need(report["unmatched"] == len(works) - len(known), "report: another number without a call")
    need(report["time_ns"] == sum(item.end - item.begin for item in works), "report: another time")
    print(f"{len(works)} records of GPU work, {len(lanes)} streams, {len(known)} flows from calls: as in the report")


# ---- damage -------------------------------------------------------------------------------------


def damage_chrome(document, random):
    def one(phases, act, where=lambda event: True):
        copied = copy.deepcopy(document)
        events = copied["traceEvents"]
        hits = [i for i, event in enumerate(events) if event["ph"] in phases and where(event)]
        if not hits:
            return None
        act(events, random.choice(hits))
        return copied

    def change(key, value):
        return lambda events, at: events[at].__setitem__(key, value(events[at].get(key)))

    def drop(events, at):
        del events[at]

    later = lambda ts: ts + decimal.Decimal("0.001")
    bare = lambda event: event["name"] == "thread_name" and event["tid"] < 2**30
    return {
        "a B is missing": one("B", drop),
        "an E is missing": one("E", drop),
        "an instant is missing": one("i", drop),
        "a B is 1 ns later": one("B", change("ts", later)),
        "an E is 1 ns later": one("E", change("ts", later)),
        "a name is another": one("B", change("name", lambda name: name + "2")),
        "a category is another": one("B", change("cat", lambda cat: cat + "2")),
        "an argument is another": one("B", lambda events, at: events[at]["args"].update(event_id=10**9)),
        "an argument is gone": one("B", lambda events, at: events[at]["args"].pop("args"),
                                   lambda event: "args" in event["args"]),
        "a tid is another": one("B", change("tid", lambda tid: tid + 2**20)),
        "a pid is text": one("E", change("pid", str)),
        "a counter is another": one("C", lambda events, at: events[at]["args"].update(bytes=-1)),
        "a counter is missing": one("C", drop),
        "a thread has no name": one("M", drop, bare),
        "a process has no name": one("M", drop, lambda event: event["name"] == "process_name"),
        "a flow has no start": one("s", drop),
        "a flow has no end": one("f", drop),
        "a flow starts earlier": one("s", change("ts", lambda ts: ts - 1)),
        "a duration is 1 ns longer": one("X", change("dur", later)),
        "a duration is gone": one("X", lambda events, at: events[at].pop("dur")),
        "a phase is unknown": one("E", change("ph", lambda phase: "Q")),
    }


def damage_perfetto(trace, random):
    def one(field, act, where=lambda packet: True):
        copied = pb.Trace()
        copied.CopyFrom(trace)
        hits = [i for i, packet in enumerate(copied.packet) if packet.HasField(field) and where(packet)]
        if not hits:
            return None
        act(copied, random.choice(hits))
        return copied

    def drop(copied, at):
        del copied.packet[at]

    def of(kind):
        return lambda packet: packet.track_event.type == kind

    def edit(change):
        return lambda copied, at: change(copied.packet[at])

    begin, end, instant, counter = 1, 2, 3, 4
    # A call has a flow also if it makes no ioctl: it leads nowhere.
    uses = collections.Counter(number for packet in trace.packet for number in packet.track_event.flow_ids)
    flows = lambda packet: any(uses[number] > 1 for number in packet.track_event.flow_ids)
    return {
        "a begin is missing": one("track_event", drop, of(begin)),
        "an end is missing": one("track_event", drop, of(end)),
        "an instant is missing": one("track_event", drop, of(instant)),
        "a counter is missing": one("track_event", drop, of(counter)),
        "a begin is 1 ns later": one("track_event", edit(lambda p: setattr(p, "timestamp", p.timestamp + 1)), of(begin)),
        "an end is 1 ns later": one("track_event", edit(lambda p: setattr(p, "timestamp", p.timestamp + 1)), of(end)),
        "a name is another": one("track_event", edit(lambda p: setattr(p.track_event, "name_iid", p.track_event.name_iid + 1)), of(begin)),
        "a category is gone": one("track_event", edit(lambda p: p.track_event.ClearField("category_iids")), of(begin)),
        "an annotation is gone": one("track_event", edit(lambda p: p.track_event.debug_annotations.pop()), of(begin)),
        "a number is another": one("track_event", edit(lambda p: setattr(p.track_event.debug_annotations[0], "uint_value", 10**9)), of(begin)),
        "a counter is another": one("track_event", edit(lambda p: setattr(p.track_event, "counter_value", -1)), of(counter)),
        "a track is another": one("track_event", edit(lambda p: setattr(p.track_event, "track_uuid", 10**6)), of(begin)),
        "a flow is gone": one("track_event", edit(lambda p: p.track_event.ClearField("flow_ids")), flows),
        "a flow is another": one("track_event", edit(lambda p: p.track_event.flow_ids.__setitem__(0, 10**9)), flows),
        "interned text is gone": one("interned_data", edit(lambda p: p.ClearField("interned_data"))),
        "flags are gone": one("track_event", edit(lambda p: p.ClearField("sequence_flags"))),
        "the state is cleared": one("track_event", edit(lambda p: setattr(p, "sequence_flags", CLEARED)),
                                    lambda p: not p.HasField("interned_data") and p.track_event.type == begin),
        "the state is never cleared": one("track_descriptor", edit(lambda p: setattr(p, "sequence_flags", NEEDS)),
                                          lambda p: p.first_packet_on_sequence),
        "a track is not told": one("track_descriptor", drop),
        "a sequence is another": one("track_event", edit(lambda p: setattr(p, "trusted_packet_sequence_id", 99))),
        "the clock is missing": one("clock_snapshot", drop),
    }


def mutate(expected, document, trace, renumbered):
    blind = tried = 0
    for seed in range(5):
        chrome = damage_chrome(document, random.Random(seed))
        perfetto = damage_perfetto(trace, random.Random(seed))
        for what, damaged in [*chrome.items(), *perfetto.items()]:
            if damaged is None:
                continue
            tried += 1
            try:
                if isinstance(damaged, dict):
                    compare(expected, read_chrome(damaged), "chrome", renumbered)
                else:
                    compare(expected, read_perfetto(damaged, expected), "perfetto", renumbered)
            except (Wrong, KeyError):
                continue
            blind += 1
            print(f"not found: {what} (seed {seed})")
    print(f"{tried} damaged exports, {tried - blind} found")
    return blind


def main(args):
    mutating = args[:1] == ["--mutate"]
    paths, chrome_path, perfetto_path, *rest = args[1:] if mutating else args
    paths = paths.split(",")
    expected = Expected(paths)
    document = json.load(open(chrome_path), parse_float=decimal.Decimal)
    trace = pb.Trace()
    trace.ParseFromString(open(perfetto_path, "rb").read())
    # Protobuf readers keep what they do not know: there must be nothing of that kind.
    need(trace.ByteSize() == len(open(perfetto_path, "rb").read()), "perfetto: bytes that no field has")
    renumbered = len(paths) > 1
    compare(expected, read_chrome(copy.deepcopy(document)), "chrome", renumbered)
    compare(expected, read_perfetto(trace, expected), "perfetto", renumbered)
    if rest:
        check_csv(expected, open(rest[0], newline="").read())
    if rest[1:]:
        check_report(expected, json.load(open(rest[1])))
    print(f"{' '.join(paths)}: {len(expected.slices)} slices, {len(expected.beside)} beside, "
          f"{len(expected.instants)} instants, {sum(expected.counters.values())} counter values, "
          f"{len(expected.flows)} flows, {len(expected.open)} in flight, "
          f"{len(expected.threads)} threads: chrome, perfetto{' and csv' if rest else ''} as the trace")
    return mutate(expected, document, trace, renumbered) if mutating else 0


if __name__ == "__main__":
    try:
        sys.exit(1 if main(sys.argv[1:]) else 0)
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(1)
