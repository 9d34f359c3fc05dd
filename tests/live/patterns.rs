//! --only, --skip and --lib that match nothing: refused before anything starts, or reported in the trace.

use crate::disorder::X;
use crate::manners::refused;
use crate::room::live;

#[test]
fn a_pattern_of_no_function_is_refused() {
    live(|room| {
        let x = X::new(room);
        let ran = format!("touch {}", room.text("ran"));
        let run = ["--", "sh", "-c", &ran];
        for (options, why) in [
            (&["--only", "cudaMaloc"][..], "did you mean cudaMalloc"),
            (&["--skip", "cuLaunchKernal"], "cuLaunchKernel"),
            (&["--only", "cuda*", "--only", "cublas*"], "--only cublas* "),
            (&["--api", "driver", "--only", "cudaMalloc"], "--api leaves out"),
            (&["--lib", "libnccl.so.2:nccl*", "--only", "cudaMaloc"], "did you mean cudaMalloc"),
            (&["--lib", &x.lib(), "--only", "y_*"], "--only y_* "),
        ] {
            refused(room, 2, &[options, &run].concat(), why);
        }
        for options in [
            &["--lib", &x.lib(), "--only", "x_l*"][..],
            &["--lib", "libcublas.so.12:cublas*", "--skip", "cublasSgemm*"],
            &["--only", "nccl*", "--skip", "ncclAll*"],
            &["--api", "driver", "--skip", "cudaMalloc"],
            &["--only", "cuMemcpyHtoDAsync", "--skip", "cuMemcpyHtoDAsync_v2_ptsz"],
        ] {
            room.record(options, &["true"]).0.exited(0);
        }
    });
}

#[test]
fn a_lib_of_which_nothing_was_recorded_is_said() {
    live(|room| {
        let x = X::new(room);
        let nothing = format!("{}:zzz*", x.library);
        let lib = x.lib();
        let both = [&*lib, "libnvidia-ml.so:nvml*"];
        for (libs, why) in [
            (&[&*nothing][..], "exports no function of that name"),
            (&["libx.so.1:zzz*"], "exports no function of that name"),
            (&both, "no recorded process loaded a file of that name"),
            (&["/etc/hostname"], "no recorded process loaded that file"),
        ] {
            let options: Vec<&str> = libs.iter().flat_map(|lib| ["--lib", lib]).collect();
            let (done, trace) = room.record(&options, &[&x.program, "leaf", "10"]);
            done.exited(0).said("NOT complete").said(why);
            assert!(!trace.complete());
            assert_eq!(trace.codes(), ["lib"], "{:?}", trace.reasons());
            if libs.len() == 2 {
                trace.has_calls(&[("x_leaf", 10)]);
            }
        }
        let (done, trace) = room.record(&["--lib", "libx.so.1:x_leaf"], &[&x.program, "leaf", "10"]);
        done.exited(0);
        trace.is_whole().has_calls(&[("x_leaf", 10)]);
    });
}
