//! Random lines of every frequent kind, with odd texts and extreme numbers. In: a seed. Out: lines.

use super::*;

/// A small generator with a seed, so that a failing case can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Small, medium and extreme numbers alike.
    pub fn number(&mut self) -> u64 {
        match self.below(9) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << 53,
            // Where a number gets one more digit.
            3 => 10u64.pow(self.below(20) as u32).wrapping_add(self.below(3)).wrapping_sub(1),
            _ => {
                let shift = self.below(64);
                self.next() >> shift
            }
        }
    }

    pub fn text(&mut self) -> String {
        const ODD: [char; 12] =
            ['"', '\\', '\n', '\r', '\t', '\u{8}', '\u{c}', '\0', '\u{1f}', '\u{7f}', 'é', '\u{1f600}'];
        let length = if self.below(200) == 0 { self.below(5000) } else { self.below(24) };
        (0..length)
            .map(|_| match self.below(3) {
                0 => ODD[self.below(12) as usize],
                _ => (b' ' + self.below(95) as u8) as char,
            })
            .collect()
    }

    pub fn value(&mut self, deep: u32) -> Value<'static> {
        match self.below(if deep == 0 { 7 } else { 9 }) {
            0 => Value::Null,
            1 => Value::Bool(self.below(2) == 0),
            2 => Value::Number(self.number()),
            3 => Value::Signed(-1 - (self.number() >> 1) as i64),
            4 => Value::Float(self.below(1000) as f64 / 8.0 + 0.125),
            5 => Value::Hex(self.number()),
            6 => Value::Text(Cow::Owned(self.text())),
            7 => Value::Array(List::Owned((0..self.below(4)).map(|_| self.value(deep - 1)).collect())),
            _ => Value::Object(self.named(deep - 1)),
        }
    }

    pub fn named(&mut self, deep: u32) -> List<'static, Arg<'static>> {
        let count = 1 + self.below(4);
        let arg = |i| Arg { name: Cow::Owned(format!("{}{i}", self.text())), value: self.value(deep) };
        List::Owned((0..count).map(arg).collect())
    }

    fn begin(&mut self) -> Body<'static> {
        let registers: Vec<u64> = (0..self.below(7)).map(|_| self.number()).collect();
        Body::Begin(Begin {
            name: Cow::Owned(self.text()),
            pid: self.number() as u32,
            tid: self.number() as u32,
            depth: self.number() as u32,
            parent: (self.below(2) == 0).then(|| self.number()),
            args: match self.below(2) {
                0 => Args::raw(&registers),
                _ => Args::Named(self.named(2)),
            },
            stack: (self.below(4) == 0).then(|| self.number()),
            launch: (self.below(2) == 0).then(|| self.launch()),
            no_return: (self.below(4) == 0).then(|| Cow::Owned(self.text())),
            carried: self.below(4) == 0,
        })
    }

    fn launch(&mut self) -> Launch<'static> {
        // An empty list cannot be distinguished from none.
        let triple = |random: &mut Random| {
            (random.below(3) > 0)
                .then(|| [random.number() as u32, random.number() as u32, random.number() as u32])
        };
        let (grid, block, cluster) = (triple(self), triple(self), triple(self));
        Launch {
            kernel: (self.below(4) > 0).then(|| Cow::Owned(self.text())),
            grid,
            block,
            shared: (self.below(2) == 0).then(|| self.number()),
            stream: Some(self.number()),
            cluster,
            cooperative: self.below(2) == 0,
            nodes: (self.below(2) == 0).then(|| self.number()),
            on: self.on(),
        }
    }

    fn on(&mut self) -> Where {
        Where {
            device: (self.below(2) == 0).then(|| self.number() as u32),
            context: (self.below(2) == 0).then(|| self.number()),
        }
    }

    fn memory(&mut self) -> Body<'static> {
        let op = if self.below(2) == 0 { Op::Alloc } else { Op::Free };
        Body::Memory(Memory {
            name: Cow::Owned(self.text()),
            pid: self.number() as u32,
            tid: self.number() as u32,
            begin: (self.below(4) > 0).then(|| self.number()),
            on: self.on(),
            op,
            space: Cow::Owned(self.text()),
            ptr: self.number(),
            size: (self.below(4) > 0).then(|| self.number()),
            total_allocated: (self.below(4) > 0).then(|| self.number()),
            earlier: self.below(4) == 0,
            missed: self.below(4) == 0,
            runtime: self.below(2) == 0,
            carried: self.below(4) == 0,
            stack: (self.below(4) == 0).then(|| self.number()),
        })
    }

    fn transfer(&mut self) -> Body<'static> {
        Body::Transfer(Transfer {
            name: Cow::Owned(self.text()),
            pid: self.number() as u32,
            tid: self.number() as u32,
            begin: self.number(),
            on: self.on(),
            direction: Cow::Owned(self.text()),
            size: self.number(),
            partial: self.below(2) == 0,
            is_async: self.below(2) == 0,
            pageable: self.below(2) == 0,
            duration_ns: (self.below(3) > 0).then(|| self.number() >> 13),
        })
    }

    fn block(&mut self) -> Body<'static> {
        Body::Block(Block {
            name: Cow::Owned(self.text()),
            pid: self.number() as u32,
            tid: self.number() as u32,
            begin: (self.below(2) == 0).then(|| self.number()),
            op: if self.below(2) == 0 { Op::Alloc } else { Op::Free },
            ptr: self.number(),
            size: (self.below(4) > 0).then(|| self.number()),
            device: (self.below(4) > 0).then(|| self.number() as u32),
            stream: (self.below(4) > 0).then(|| self.number()),
            stack: (self.below(2) == 0).then(|| self.number()),
        })
    }

    fn collective(&mut self) -> Body<'static> {
        let text = |random: &mut Random| (random.below(3) > 0).then(|| Cow::Owned(random.text()));
        let (comm, dtype, redop) = (text(self), text(self), text(self));
        let number = |random: &mut Random| (random.below(3) > 0).then(|| random.number());
        let small = |random: &mut Random| (random.below(3) > 0).then(|| random.number() as u32);
        Body::Collective(Collective {
            name: Cow::Owned(self.text()),
            pid: self.number() as u32,
            tid: self.number() as u32,
            begin: self.number(),
            comm,
            rank: small(self),
            nranks: small(self),
            seq: number(self),
            op: Cow::Owned(self.text()),
            count: number(self),
            dtype,
            bytes: number(self),
            stream: number(self),
            root: small(self),
            redop,
            peer: small(self),
            pseq: number(self),
            group: number(self),
        })
    }

    fn gpu(&mut self) -> Body<'static> {
        let triple =
            |random: &mut Random| (random.below(2) == 0).then(|| [0; 3].map(|_: u32| random.number() as u32));
        let (grid, block) = (triple(self), triple(self));
        Body::Gpu(Gpu {
            name: Cow::Owned(self.text()),
            kind: [GpuKind::Kernel, GpuKind::Copy, GpuKind::Set, GpuKind::Graph][self.below(4) as usize],
            source: if self.below(4) == 0 { GpuSource::Tap } else { GpuSource::Lane },
            pid: self.number() as u32,
            device: self.number() as u32,
            context: self.number() as u32,
            stream: self.number() as u32,
            correlation: self.number() as u32,
            begin: (self.below(4) > 0).then(|| self.number()),
            duration_ns: self.number() >> 13,
            queued_ns: (self.below(4) > 0).then(|| (self.number() as i64) >> 13),
            grid,
            block,
            registers: (self.below(2) == 0).then(|| self.number() as u32),
            shared: (self.below(2) == 0).then(|| self.number()),
            direction: (self.below(2) == 0).then(|| Cow::Owned(self.text())),
            size: (self.below(2) == 0).then(|| self.number()),
            graph: (self.below(2) == 0).then(|| self.number()),
            node: (self.below(2) == 0).then(|| self.number()),
        })
    }

    fn end(&mut self) -> Body<'static> {
        Body::End(End {
            name: Cow::Owned(self.text()),
            pid: self.number() as u32,
            tid: self.number() as u32,
            begin: self.number(),
            // The reader gets it as a double, which is exact up to here.
            duration_ns: (self.below(3) > 0).then(|| self.number() >> 13),
            paused_ns: if self.below(3) == 0 { self.number() >> 13 } else { 0 },
            retval: match self.below(3) {
                0 => None,
                1 => Some(Retval::Number(self.number() as i64)),
                _ => Some(Retval::Pointer(self.number())),
            },
            error: (self.below(3) == 0).then(|| Cow::Owned(self.text())),
            out: match self.below(3) {
                0 => None,
                _ => Some(Args::Named(self.named(1))),
            },
            late: (self.below(4) == 0).then(|| Args::Named(self.named(1))),
            ended: match self.below(3) {
                0 => EndKind::Returned,
                1 => EndKind::Unwound,
                _ => EndKind::Lost,
            },
        })
    }

    pub fn line(&mut self) -> Line<'static> {
        Line {
            event_id: self.number(),
            ts_ns: self.number(),
            body: match self.below(10) {
                0 => self.begin(),
                1 => self.memory(),
                2 => self.transfer(),
                3 => self.kernel_begin(),
                4 => self.kernel_end(),
                5 => self.instant(),
                6 => self.block(),
                7 => self.gpu(),
                8 => self.collective(),
                _ => self.end(),
            },
        }
    }
}
