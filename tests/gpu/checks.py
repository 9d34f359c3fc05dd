"""Tests of the comparisons that the parts make. They need no GPU: python3 -m unittest gpu.checks, in tests/. In: lines
and exports made up here. Out: verdicts that are known.
"""

import unittest

from . import account, clock, collectives, idle, inproc, kills, profiles, tap
from .frame import PROGRAMS
from .profiles import Work


def call(number, ts, name, end=None, **keys):
    """The lines of a call; without `end` it did not return."""
    base = {"type": "userspace", "name": name, "pid": 1, "tid": 1}
    yield {**base, "phase": "B", "event_id": number, "ts": ts, "depth": 0, "args": {}, **keys}
    if end is not None:
        yield {**base, "phase": "E", "event_id": number + 1, "ts": end, "begin": number}


def gpu(ts, us, begin, kind="kernel", name="k", **keys):
    line = {"type": "gpu", "ts": ts, "duration_us": us, "begin": begin, "kind": kind, "name": name}
    return {**line, "source": "lane", "correlation": begin or 0, **keys}


def the_end(launches, api, delivered, unmatched=0, in_flight=(), **reasons):
    listed = [{"code": code, "count": count} for code, count in reasons.items()]
    counts = {"launches": launches, "api": api, "delivered": delivered, "dropped": 0, "unmatched": unmatched}
    in_flight = [{"begin": begin} for begin in in_flight]
    return {"type": "end", "name": "end", "in_flight": in_flight, "gpu": {**counts, "before": 0, "reasons": listed}}


class Names(unittest.TestCase):
    def test_spelling(self):
        ours = {"void f<int, (anonymous namespace)::g>()", "a<1u, >({lambda(B const)#1}&)", "long::na…", "only"}
        theirs = {"void f<int,(anonymous namespace)::g>()", "a<1>({lambda(B)#1} const&)", "long::name()", "other"}
        matched, spelled = profiles.matched_names(ours, theirs)
        self.assertEqual(sorted(one for one, _ in spelled), ["a<1u, >({lambda(B const)#1}&)", "long::na…"])
        self.assertEqual(matched["long::na…"], "long::name()")
        self.assertNotIn("only", matched)

    def test_blanks_do_not_count(self):
        one = [Work("kernel", "void f<A<B> >(int, long)", 2.0, 0, 1)]
        other = [Work("kernel", "void f<A<B>>(int, long)", 2.0, 0, 1)]
        rows, spelled = profiles.rows(one, other)
        self.assertEqual([(row.ours, row.theirs) for row in rows], [(1, 1)])
        self.assertFalse(spelled)

    def test_an_export_has_work_and_more(self):
        events = [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0, "dur": 1},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "k",
                "ts": 1,
                "dur": 2.5,
                "args": {"correlation": 7, "graph node id": 3},
            },
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "ts": 4, "dur": 1, "args": {}},
            {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 6, "dur": 1},
        ]
        found = profiles.of_events(events)
        self.assertEqual(
            [(work.kind, work.name) for work in found], [("kernel", "k"), ("copy", "D2H"), ("set", "memset")]
        )
        self.assertEqual((found[0].correlation, found[0].in_graph, found[0].us), (7, True, 2.5))


class Comparisons(unittest.TestCase):
    def test_counts_and_durations(self):
        ours = [Work("kernel", "a", 1.0, 0, 1), Work("kernel", "a", 1.0, 2, 2), Work("copy", "H2D", 3.0, 4, 3)]
        rows, _ = profiles.rows(ours, ours[1:])
        self.assertEqual({row.name: (row.ours, row.theirs) for row in rows}, {"a": (2, 1), "H2D": (1, 1)})
        self.assertEqual({row.name: row.ratio for row in rows}, {"a": 2.0, "H2D": 1.0})

    def test_pairs_by_call_and_time(self):
        ours = [Work("kernel", "a", 1.0, 100, 1), Work("kernel", "a", 5.0, 200, 1), Work("kernel", "b", 1.0, 300, 2)]
        theirs = [Work("kernel", "a", 5.2, 1200, 1), Work("kernel", "a", 1.0, 1100, 1)]
        pairs = profiles.paired(ours, theirs)
        self.assertEqual([round(error, 3) for error in pairs.duration_errors()], [0, 0.2])
        self.assertEqual(pairs.start_errors(), [0, 0])
        self.assertEqual([work.name for work in pairs.only_ours], ["b"])
        self.assertEqual([holds for holds, _ in tap.judged(ours, theirs)], [False, True])
        self.assertEqual([holds for holds, _ in tap.judged(theirs, theirs)], [True, True])


class Accounts(unittest.TestCase):
    def judged(self, *lines):
        return [holds for holds, _ in account.judged(account.seen(lines))]

    def test_one_launch_of_runtime_and_driver(self):
        inner = call(2, 1.1, "cuLaunchKernel", 1.2, parent=1)
        lines = [*call(1, 1.0, "cudaLaunchKernel", 1.3), *inner, gpu(1.4, 5, 2)]
        self.assertTrue(all(self.judged(*lines, the_end(1, 1, 1))))
        self.assertFalse(all(self.judged(*lines, the_end(2, 1, 1))))
        self.assertFalse(all(self.judged(*lines, the_end(1, 1, 0))))

    def test_graphs_and_kills(self):
        launch = list(call(1, 1.0, "cuGraphLaunch", 1.1))
        nodes = [gpu(1.2 + at, 1, 1, node=at) for at in range(3)]
        self.assertTrue(all(self.judged(*launch, *nodes, the_end(1, 1, 3, graph_nodes=2))))
        self.assertFalse(all(self.judged(*launch, *nodes, the_end(1, 1, 3))))
        self.assertTrue(all(self.judged(*launch, the_end(1, 0, 0, killed=1))))

    def test_a_launch_that_did_not_return(self):
        lines = [*call(1, 1.0, "cuLaunchKernel"), gpu(1.1, 1, None)]
        self.assertTrue(all(self.judged(*lines, the_end(0, 0, 1, unmatched=1, in_flight=[1]))))
        self.assertFalse(all(self.judged(*lines, the_end(0, 0, 1, unmatched=1))))


class Clocks(unittest.TestCase):
    def test_a_start_before_its_call(self):
        found = clock.seen([*call(1, 1.0, "cuLaunchKernel", 1.1), gpu(1.5, 1, 1), gpu(0.9, 1, 1)])
        self.assertEqual(clock.early(found), [-100_000_000, 500_000_000])

    def test_waits_cover_their_stream(self):
        lines = [
            *call(1, 1.0, "cuLaunchKernel", 1.1, stream="0x1"),
            *call(3, 1.2, "cuLaunchKernel", 1.3, stream="0x2"),
            gpu(1.2, 100_000, 1),
            gpu(1.3, 900_000, 3),
            *call(5, 1.4, "cuStreamSynchronize", 1.5, args={"hStream": "0x1"}),
            *call(7, 1.6, "cudaDeviceSynchronize", 2.0),
        ]
        self.assertEqual(clock.late(clock.seen(lines)), [-200_000_000, 200_000_000])

    def test_waits_for_events(self):
        lines = [
            *call(1, 1.0, "cuLaunchKernel", 1.1, stream="0x1"),
            *call(3, 1.2, "cuEventRecord", 1.3, args={"hEvent": "0xe", "hStream": "0x1"}),
            *call(5, 1.4, "cuLaunchKernel", 1.5, stream="0x1"),
            gpu(1.1, 400_000, 1),
            gpu(1.6, 400_000, 5),
            *call(7, 1.6, "cuEventSynchronize", 1.7, args={"hEvent": "0xe"}),
        ]
        self.assertEqual(clock.late(clock.seen(lines)), [200_000_000])

    def test_ends_against_events(self):
        lines = [gpu(at, 1000, None, name="spin_kernel") for at in (1.0, 2.0, 3.5)]
        printed = {"kernel": "spin", "first": 1, "ms": [1500.0]}
        self.assertEqual(clock.between(clock.seen(lines), printed), [(1_500_000.0, 1_500_000.0)])


def operation(number, op, comm="c", **keys):
    line = {"type": "collective", "name": f"nccl{op}", "pid": 1, "tid": 1, "begin": number, "comm": comm, "op": op}
    return {**line, "count": 4, "dtype": "float32", "bytes": 16, **keys}


class Collectives(unittest.TestCase):
    made = {
        "group": "1",
        "counted": [["AllReduce", 4, "float32", None], ["AlltoAll", 4, "float32", None], ["Send", 4, "float32", 1]],
        "flight_recorder": [
            {
                "process_group": ["0", "default"],
                "profiling_name": "nccl:_all_gather_base",
                "input_sizes": [[2, 2]],
                "output_sizes": [[4, 2]],
                "input_dtypes": ["Float"],
            },
            {"process_group": ["1", ""], "profiling_name": "nccl:all_reduce"},
        ],
    }

    def lines(self):
        """An all-to-all is sends and receives in a group. The kernel of a group comes with the outermost end."""
        yield {"type": "process", "name": "exec", "pid": 1, "rank": 0}
        yield from call(0, 0, "ncclAllReduce", 2)
        yield operation(0, "AllReduce", seq=0)
        yield from call(10, 3, "ncclGroupStart", 4)
        for at, (op, peer) in enumerate([("Send", 0), ("Recv", 0), ("Send", 1), ("Recv", 1)]):
            yield from call(20 + 2 * at, 5, f"nccl{op}", 6)
            yield operation(20 + 2 * at, op, peer=peer, pseq=0, group=1)
        yield from call(30, 7, "ncclGroupEnd", 9)
        yield from call(40, 10, "ncclGroupStart", 11)
        yield from call(42, 12, "ncclGroupStart", 13)
        yield from call(44, 14, "ncclSend", 15)
        yield operation(44, "Send", peer=1, pseq=1, group=2)
        yield from call(46, 16, "ncclGroupEnd", 17)
        yield from call(48, 18, "ncclGroupEnd", 22)
        yield from call(50, 19, "cudaLaunchKernel", 20, parent=48)
        yield from call(60, 30, "ncclAllGather", 31)
        yield operation(60, "AllGather", "d", seq=0)
        yield from (gpu(1, 1, begin, name="ncclDevKernel") for begin in (0, 30, 50))
        yield gpu(1, 1, 60, kind="copy", name="memcpy")

    def test_lines_are_what_the_ranks_asked_for(self):
        ranks = {0: collectives.recorded(self.lines())[1]}
        made = {0: self.made, 1: self.made}
        rows, faults = collectives.matched(ranks, made)
        self.assertEqual(faults, ["rank 1 has no collectives"])
        self.assertEqual([row[:5] for row in rows], [[0, "1", "c", 3, 6], [0, "0", "d", 1, 1]])
        self.assertEqual(+ranks[0].without_kernel, {"AllGather": 1})

    def test_what_is_missing_is_said(self):
        lines = [line for line in self.lines() if line.get("seq") != 0 or line.get("comm") != "c"]
        ranks = {0: collectives.recorded(lines)[1]}
        _, faults = collectives.matched(ranks, {0: self.made, 1: self.made})
        self.assertIn("rank 0, group 1", faults[0])


class Others(unittest.TestCase):
    def test_shares(self):
        self.assertEqual(idle.covered([(0, 2), (1, 3), (8, 12)], (1, 11)), 0.5)

    def test_causes(self):
        row = {
            "what": "own code, before this call",
            "call_site": "a.py:7 f",
            "total_ns": 60,
            "total_percent": 60,
        }
        report = {"idle_ns": 100, "lines": [row, {**row, "call_site": "a.py:8 f", "total_ns": 40}]}
        self.assertTrue(all(holds for holds, _ in idle.judged_loader(report, "a.py:7 ")))
        self.assertFalse(all(holds for holds, _ in idle.judged_loader(report, "a.py:8 ")))

    def test_an_analysis_is_read(self):
        self.assertEqual(
            inproc.counts("x\n  00 distinct addresses: 600\n  29 [5] CLEAN: 598\n      589 Cmp\n"),
            {"00": 600, "29": 598},
        )
        maps = "7f0-7f1 r-xp 0 08:01 1 /usr/lib/libcuda.so.580.1\n7f2-7f3 r--p 0 08:01 2 /x y/libcudart.so.13\n"
        maps += "7f4-7f5 rw-p 0 0 0\n"
        self.assertEqual(inproc.libraries(maps), ["/usr/lib/libcuda.so.580.1", "/x y/libcudart.so.13"])

    def test_what_ends_by_ctrl_c_has_printed_the_beginning(self):
        done = kills.Done(kills.END, 0, 130, ["ready", "1"], "", 0)
        self.assertTrue(kills.is_right(done, ["ready", "1", "2"]))
        done.how = kills.KILL
        self.assertFalse(kills.is_right(done, ["ready", "1", "2"]))


class Programs(unittest.TestCase):
    def test_they_can_be_read(self):
        for path in PROGRAMS.glob("*.py"):
            compile(path.read_text(), path, "exec")

    def test_the_lines_that_reports_must_name_are_there(self):
        self.assertRegex(idle.line_of("slow_loader", "own code"), r"^slow_loader.py:\d+ $")
        self.assertRegex(idle.line_of("hidden_item", "synchronisation"), r"^hidden_item.py:\d+ $")


if __name__ == "__main__":
    unittest.main()
