//! The tables of the Parquet dataset and their columns: the one place from which the schema and the values follow.
//!
//! A column takes the value of the key of the trace that it is named after. A key without a column goes into `rest`, so
//! a key that is added to a line is in the dataset without a change here. Not here: how values are stored (batch.rs)
//! and encoded (chunk.rs).

/// How the values of a column are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A time or an id, close to that of the row before: delta-packed.
    Rising,
    /// Another whole number, or the 64 bits of a pointer: in a dictionary, or delta-packed if there are too many.
    Number,
    /// A text of few distinct ones: in a dictionary.
    Name,
    /// Any text, such as JSON: in a dictionary, or plain if there are too many.
    Text,
    /// True or false, never null.
    Flag,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    /// Whether every row has a value.
    pub required: bool,
}

/// The columns that every table begins with: the trace that the row is of, a number that is the same in all tables; the
/// number of the line in it; the time by the host's realtime clock and by its monotonic one.
pub const COMMON: [Column; 4] = [
    Column { name: "trace", kind: Kind::Rising, required: true },
    Column { name: "event_id", kind: Kind::Rising, required: true },
    Column { name: "ts", kind: Kind::Rising, required: true },
    Column { name: "mono", kind: Kind::Rising, required: false },
];
pub const TRACE: usize = 0;
pub const EVENT_ID: usize = 1;
pub const TS: usize = 2;
pub const MONO: usize = 3;

/// A table, as a type: so the compiler finds the column of each key.
pub trait Layout {
    const TABLE: Table;

    /// The column of a key.
    fn of(key: &str) -> Option<usize>;
    /// Whether the key follows from others, so that it needs no column.
    fn follows(key: &str) -> bool;
}

/// `column: Kind = "key"`; a column without a key takes that of its own name. `without` lists the keys that follow from
/// others.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident $name:literal without [$($without:literal),*] {
        $($column:ident: $kind:ident $(= $key:literal)?,)*
    })*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Table {
            $($(#[$doc])* $table,)*
        }

        impl Table {
            pub const ALL: &[Table] = &[$(Table::$table),*];

            /// The name of its folder.
            pub fn name(self) -> &'static str {
                match self { $(Table::$table => $name,)* }
            }

            pub fn columns(self) -> impl Iterator<Item = &'static Column> {
                let own: &'static [Column] = match self {
                    $(Table::$table => const {
                        &[$(Column {
                            name: stringify!($column),
                            kind: Kind::$kind,
                            required: matches!(Kind::$kind, Kind::Flag),
                        }),*]
                    },)*
                };
                COMMON.iter().chain(own)
            }
        }

        $(
            pub struct $table;

            impl Layout for $table {
                const TABLE: Table = Table::$table;

                #[inline(always)]
                #[allow(unused_assignments)] // after the last column
                fn of(key: &str) -> Option<usize> {
                    let mut at = COMMON.len();
                    $(
                        if key == tables!(@key $column $($key)?) {
                            return Some(at);
                        }
                        at += 1;
                    )*
                    None
                }

                #[inline(always)]
                #[allow(unused_variables)]
                fn follows(key: &str) -> bool {
                    false $(|| key == $without)*
                }
            }
        )*
    };
    (@key $column:ident) => { stringify!($column) };
    (@key $column:ident $key:literal) => { $key };
}

tables! {
    /// A call, B and E in one row. `duration_ns` is null if it has no end; `ended` says why.
    Calls "calls" without ["begin"] {
        name: Name,
        pid: Number,
        tid: Number,
        depth: Number,
        parent: Rising,
        duration_ns: Rising = "duration_us",
        paused_ns: Number = "paused_us",
        end_event_id: Rising,
        ended: Name,
        no_return: Name,
        retval: Number,
        error: Name,
        stack: Number,
        site: Name,
        kernel: Name,
        grid_x: Number = "grid",
        grid_y: Number,
        grid_z: Number,
        block_x: Number = "block",
        block_y: Number,
        block_z: Number,
        cluster_x: Number = "cluster",
        cluster_y: Number,
        cluster_z: Number,
        shared: Number,
        cooperative: Flag,
        nodes: Number,
        stream: Number,
        device: Number,
        context: Number,
        carried: Flag,
        args: Text,
        late_args: Text,
        out: Text,
        rest: Text,
    }
    /// Work on the GPU.
    Gpu "gpu" without [] {
        name: Name,
        kind: Name,
        source: Name,
        pid: Number,
        device: Number,
        context: Number,
        stream: Number,
        correlation: Rising,
        begin: Rising,
        duration_ns: Rising = "duration_us",
        queued_ns: Number = "queued_us",
        grid_x: Number = "grid",
        grid_y: Number,
        grid_z: Number,
        block_x: Number = "block",
        block_y: Number,
        block_z: Number,
        registers: Number,
        shared: Number,
        direction: Name,
        size: Number,
        graph: Number,
        node: Number,
        stack: Number,
        site: Name,
        rest: Text,
    }
    /// An allocation or a free.
    Memory "memory" without [] {
        name: Name = "function",
        op: Name,
        pid: Number,
        tid: Number,
        begin: Rising,
        device: Number,
        context: Number,
        space: Name,
        ptr: Number,
        size: Number,
        total_allocated: Number,
        earlier: Flag,
        missed: Flag,
        runtime: Flag,
        carried: Flag,
        stack: Number,
        site: Name,
        rest: Text,
    }
    /// A copy or a set.
    Transfers "transfers" without ["bytes_per_sec"] {
        name: Name = "function",
        direction: Name,
        pid: Number,
        tid: Number,
        begin: Rising,
        device: Number,
        context: Number,
        size: Number,
        is_async: Flag = "async",
        partial: Flag,
        pageable: Flag,
        duration_ns: Rising = "duration_us",
        stack: Number,
        site: Name,
        rest: Text,
    }
    /// A block of PyTorch's allocator.
    Blocks "blocks" without [] {
        name: Name = "function",
        op: Name,
        pid: Number,
        tid: Number,
        begin: Rising,
        ptr: Number,
        size: Number,
        device: Number,
        stream: Number,
        stack: Number,
        site: Name,
        rest: Text,
    }
    /// A collective, a send or a receive of NCCL.
    Collectives "collectives" without [] {
        name: Name = "function",
        op: Name,
        pid: Number,
        tid: Number,
        begin: Rising,
        comm: Name,
        comm_rank: Number = "rank",
        nranks: Number,
        seq: Rising,
        count: Number,
        dtype: Name,
        bytes: Number,
        stream: Number,
        root: Number,
        redop: Name,
        peer: Number,
        pseq: Rising,
        group_id: Rising = "group",
        stack: Number,
        site: Name,
        rest: Text,
    }
    /// An ioctl, a function of nvidia.ko or an event of the driver's.
    Driver "driver" without ["begin"] {
        type: Name,
        name: Name,
        pid: Number,
        tid: Number,
        depth: Number,
        parent: Rising,
        duration_ns: Rising = "duration_us",
        end_event_id: Rising,
        ended: Name,
        cpu: Number,
        thread: Name,
        device: Name,
        cmd: Number,
        request: Name,
        detail: Text,
        unknown: Flag,
        retval: Number,
        status: Name,
        error: Name,
        carried: Flag,
        args: Text,
        late_args: Text,
        out: Text,
        rest: Text,
    }
    /// A frame of a call stack; `frame` 0 is the innermost.
    Stacks "stacks" without ["frames"] {
        stack: Rising,
        pid: Number,
        frame: Number,
        kind: Name,
        function: Name,
        file: Name,
        line: Number,
        module: Name,
        build_id: Name,
        file_offset: Number = "offset",
        is_site: Flag,
        cut: Flag,
        rest: Text,
    }
    /// An event of a process. Its rank and its job are those of the partition.
    Processes "processes" without ["rank", "job"] {
        name: Name,
        pid: Number,
        tid: Number,
        command: Text,
        local_rank: Number,
        world_size: Number,
        comm: Name,
        user_name: Name = "user",
        cgroup: Name,
        container: Name,
        child: Number,
        status: Number,
        signal: Name,
        path: Name,
        build_id: Name,
        functions: Number,
        not_hooked: Text,
        rest: Text,
    }
    /// A line of any other type, with all its keys as JSON.
    Other "other" without [] {
        type: Name,
        name: Name,
        pid: Number,
        tid: Number,
        line: Text,
    }
    /// One row for a trace: its header and its end. It is written last.
    Meta "meta" without [] {
        file: Name,
        version: Name,
        schema: Number,
        start: Name,
        kernel: Name,
        driver: Name,
        user_name: Name = "user",
        command: Text,
        pids: Text,
        all_processes: Flag = "all",
        options: Text,
        hooks: Text,
        ns_per_call: Number,
        ns_per_call_by_site: Text,
        boot_id: Name,
        clock: Text,
        ended: Flag,
        end_ts: Rising,
        complete: Flag,
        events: Number,
        lost: Number,
        incomplete_because: Text,
        incomplete_codes: Text,
        in_flight: Text,
        stops: Text,
        gpu: Text,
        dump: Text,
        summary: Text,
        notes: Text,
        rest: Text,
    }
}
