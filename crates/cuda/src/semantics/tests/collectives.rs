//! Calls of NCCL, as one or several ranks make them.

use super::*;
use gpurec_trace::Collective;

const COMM: u64 = 0x5000;
const STREAM: u64 = 0x77;

/// A unique id as words of the stack, for x86-64, and as bytes, for AArch64.
fn init(rank: u64, nranks: u64, id: u64) -> Make {
    let made = call("ncclCommInitRank", &[0x10, nranks, 0, rank]).wrote(0, COMM);
    let id: Vec<u64> = (0..16).map(|word| id * 100 + word).collect();
    let bytes: Vec<u8> = id.iter().flat_map(|word| word.to_le_bytes()).collect();
    made.stack(&id).read(2, &bytes)
}

fn reduce(comm: u64) -> Make {
    call("ncclAllReduce", &[1, 2, 1000, 7, 0, comm, STREAM])
}

fn sent(name: &'static str, peer: u64) -> Make {
    call(name, &[1, 10, 9, peer, COMM, STREAM])
}

fn line(play: &mut Play, make: Make) -> Collective<'static> {
    let effects = play.make(make);
    let [Effect::Collective(line)] = &effects[..] else { panic!("{effects:?}") };
    (**line).clone()
}

#[test]
fn an_operation_has_its_arguments_and_its_number() {
    let mut play = Play::new();
    assert!(play.make(init(1, 4, 3)).is_empty());
    let first = line(&mut play, reduce(COMM));
    let expected = Collective {
        pid: 7,
        tid: 1,
        begin: 3,
        name: "ncclAllReduce".into(),
        comm: first.comm.clone(),
        rank: Some(1),
        nranks: Some(4),
        seq: Some(0),
        op: "AllReduce".into(),
        count: Some(1000),
        dtype: Some("float32".into()),
        bytes: Some(4000),
        stream: Some(STREAM),
        redop: Some("sum".into()),
        ..Collective::default()
    };
    assert_eq!(first, expected);
    assert_eq!(first.comm.as_ref().map(|comm| comm.len()), Some(16));
    let cast = line(&mut play, call("ncclBroadcast", &[1, 2, 8, 9, 3, COMM, STREAM]));
    assert_eq!((cast.seq, cast.root, cast.bytes, cast.redop), (Some(1), Some(3), Some(16), None));
    let own = line(&mut play, call("ncclReduceScatter", &[1, 2, 8, 77, 6, COMM, STREAM]));
    assert_eq!(
        (own.dtype.as_deref(), own.bytes, own.redop.as_deref()),
        (Some("77"), None, Some("premulsum"))
    );
    assert!(play.make(reduce(COMM).returned(5)).is_empty(), "it failed");
    assert_eq!(line(&mut play, reduce(COMM)).seq, Some(3));
    play.make(call("ncclCommFinalize", &[COMM]));
    assert_eq!(line(&mut play, reduce(COMM)).seq, Some(4), "it is ended only by the next");
    play.make(call("ncclCommDestroy", &[COMM]));
    let after = line(&mut play, reduce(COMM));
    assert_eq!((after.comm, after.seq), (None, None));
}

#[test]
fn ranks_agree_and_other_communicators_differ() {
    let comm = |rank, id| {
        let mut play = Play::new();
        play.make(init(rank, 4, id));
        line(&mut play, reduce(COMM)).comm.unwrap()
    };
    assert_eq!(comm(0, 3), comm(3, 3));
    assert_ne!(comm(0, 3), comm(0, 4));
}

#[test]
fn sends_and_receives_are_numbered_by_peer() {
    let mut play = Play::new();
    play.make(init(0, 4, 3));
    play.make(call("ncclGroupStart", &[]));
    play.make(call("ncclGroupStart", &[]));
    let made = [("ncclSend", 1), ("ncclRecv", 1), ("ncclSend", 2), ("ncclSend", 1)];
    let lines = made.map(|(name, peer)| line(&mut play, sent(name, peer)));
    play.make(call("ncclGroupEnd", &[]));
    let told = lines.map(|line| (line.op.to_string(), line.peer, line.pseq, line.seq, line.group));
    let expected = [("Send", 1, 0), ("Recv", 1, 0), ("Send", 2, 0), ("Send", 1, 1)]
        .map(|(op, peer, pseq)| (op.to_owned(), Some(peer), Some(pseq), None, Some(0)));
    assert_eq!(told, expected);
    assert_eq!(line(&mut play, reduce(COMM)).group, Some(0), "the outer group is still open");
    play.make(call("ncclGroupEnd", &[]).failed());
    assert_eq!(line(&mut play, reduce(COMM)).group, None);
    play.make(call("ncclGroupStart", &[]));
    assert_eq!(line(&mut play, reduce(COMM)).group, Some(1));
    assert_eq!(line(&mut play, reduce(COMM).on(2)).group, None, "another thread");
}

#[test]
fn the_inner_call_has_the_line() {
    let mut play = Play::new();
    play.make(init(0, 4, 3));
    let outer = call("ncclBcast", &[1, 8, 7, 0, COMM, STREAM]);
    let effects = play.nested(outer, call("ncclBroadcast", &[1, 1, 8, 7, 0, COMM, STREAM]));
    let [Effect::Collective(line)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((&*line.name, line.seq), ("ncclBroadcast", Some(0)));
    assert_eq!(super::collectives::line(&mut play, reduce(COMM)).seq, Some(1));
}

#[test]
fn communicators_are_made_from_others() {
    let split =
        |color: i64, child: u64| call("ncclCommSplit", &[COMM, color as u64, 0, 0x10]).wrote(3, child);
    let child = |rank: u64, color: i64| {
        let mut play = Play::new();
        play.make(init(rank, 4, 3));
        play.make(split(color, 0x6000));
        (play.make(call("ncclCommUserRank", &[0x6000, 0x10]).wrote_bytes(1, &[1, 0, 0, 0])), play)
    };
    let (_, mut one) = child(0, 0);
    let (_, mut two) = child(2, 0);
    let (one, two) = (line(&mut one, reduce(0x6000)), line(&mut two, reduce(0x6000)));
    assert!(one.comm.is_some() && one.comm == two.comm);
    assert_eq!((one.rank, one.nranks, one.seq), (Some(1), None, Some(0)));
    let mut play = Play::new();
    play.make(init(2, 4, 3));
    let without = [0u32, 3].map(u32::to_le_bytes).concat();
    let shrink = call("ncclCommShrink", &[COMM, 1, 2, 0x10]).read(1, &without).wrote(3, 0x7000);
    play.make(shrink);
    let shrunk = line(&mut play, reduce(0x7000));
    assert_eq!((shrunk.rank, shrunk.nranks), (Some(1), Some(2)));
    let grow = call("ncclCommGrow", &[COMM, 6, 0x20, -1i64 as u64, 0x10]).wrote(4, 0x8000);
    play.make(grow);
    let grown = line(&mut play, reduce(0x8000));
    assert_eq!((grown.comm, grown.rank, grown.nranks, grown.seq), (None, Some(2), Some(6), Some(0)));
}

#[test]
fn all_devices_of_a_process() {
    let mut play = Play::new();
    let handles = [0x100u64, 0x200].map(u64::to_le_bytes).concat();
    play.make(call("ncclCommInitAll", &[0x10, 2, 0]).wrote_bytes(0, &handles));
    let (one, two) = (line(&mut play, reduce(0x100)), line(&mut play, reduce(0x200)));
    assert!(one.comm.is_some() && one.comm == two.comm);
    assert_eq!((one.rank, two.rank, two.nranks), (Some(0), Some(1), Some(2)));
    assert_eq!((one.seq, two.seq), (Some(0), Some(0)));
}

#[test]
fn what_is_not_seen_is_not_numbered() {
    let mut play = Play::late(Box::new(()));
    let earlier = line(&mut play, reduce(COMM));
    assert_eq!((earlier.comm, earlier.seq, earlier.count), (None, None, Some(1000)));
    let mut play = Play::new();
    play.make(init(0, 4, 3));
    play.meaning.collectives_missing();
    let after = line(&mut play, reduce(COMM));
    assert!(after.comm.is_some() && after.seq.is_none());
    play.meaning.not_seen("ncclSend");
    play.meaning.process_execed(7);
    play.make(call("ncclCommSplit", &[COMM, 0, 0, 0x10]).wrote(3, 0));
    assert_eq!(line(&mut play, reduce(0x9)).comm, None);
}
