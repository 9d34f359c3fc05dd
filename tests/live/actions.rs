//! What programs/truth.c does among its calls that is hard to record: it maps libraries in files that were something
//! else before, makes mappings executable, forks, and calls on other stacks. See programs/actions.h.
//! In: a random generator, and what the machine and the recording allow.
//! Out: some actions, a command that has what they need, and what a trace may say of them.

use std::fs;
use std::process::Command;

use crate::room::Room;
use crate::trace::Trace;
use crate::truth::Random;
use crate::unseen::{has_overlay, overlay, with_overlay};

#[derive(Clone, Copy, Debug)]
pub struct Action {
    /// As in programs/actions.h.
    pub name: &'static str,
    needs: Needs,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Needs {
    Nothing,
    /// Best with an overlay in which file numbers are reused and nothing else tells the files apart.
    Overlay,
    /// Needs returns that need not be watched, and lines of calls, which say so.
    OtherStacks,
}

const ACTIONS: [Action; 8] = [
    Action { name: "same-number", needs: Needs::Overlay },
    Action { name: "overwritten", needs: Needs::Nothing },
    Action { name: "mprotect", needs: Needs::Nothing },
    Action { name: "vfork", needs: Needs::Nothing },
    Action { name: "clone", needs: Needs::Nothing },
    Action { name: "fork", needs: Needs::Nothing },
    Action { name: "handler", needs: Needs::OtherStacks },
    Action { name: "coroutines", needs: Needs::OtherStacks },
];

/// Chooses none in some recordings, few in others. GPUREC_ACTIONS names those to choose from.
pub fn some(random: &mut Random, backend: &str, summary_only: bool) -> Vec<Action> {
    let among = std::env::var("GPUREC_ACTIONS").ok();
    if random.one_in(3) {
        return Vec::new();
    }
    let chosen = ACTIONS.into_iter().filter(|_| random.one_in(3)).collect::<Vec<_>>().into_iter();
    let other_stacks = backend == "uprobe.session" && !summary_only;
    let possible = chosen.filter(|action| action.needs != Needs::OtherStacks || other_stacks);
    possible.filter(|a| among.as_ref().is_none_or(|all| all.split(',').any(|one| one == a.name))).collect()
}

/// Gives the command the library and the folder that the actions need.
pub fn prepared(room: &Room, mut command: Command, actions: &[Action]) -> Command {
    if actions.is_empty() {
        return command;
    }
    let (library, folder) = (room.text("few.so"), room.text("files"));
    if !fs::exists(&library).unwrap() {
        room.compile("few.c", "few.so", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
        fs::create_dir(&folder).unwrap();
    }
    command.env("TRUTH_FEW", library);
    if actions.iter().any(|action| action.needs == Needs::Overlay) && has_overlay(room) {
        command.env("TRUTH_FOLDER", overlay(room));
        return with_overlay(room, &command);
    }
    command.env("TRUTH_FOLDER", folder);
    command
}

/// Returns whether calls may be missing that are not counted as lost, and the trace says why.
pub fn says_what_is_missing(trace: &Trace) -> bool {
    trace.codes().iter().any(|code| !["lost", "not_paused", "other_stack", "driver_returns"].contains(code))
}
