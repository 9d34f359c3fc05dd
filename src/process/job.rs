//! A process's place in a distributed job, by what its launcher put into its environment. In: an environment. Out: its
//! rank, the number of ranks, the job.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub rank: Option<u32>,
    /// Among the ranks of its machine.
    pub local_rank: Option<u32>,
    pub world_size: Option<u32>,
    pub name: Option<String>,
}

/// Rank, local rank and number of ranks of each launcher. The innermost comes first: a job of torchrun may run in one of
/// Slurm.
const LAUNCHERS: [[&str; 3]; 7] = [
    // torchrun, accelerate, DeepSpeed.
    ["RANK", "LOCAL_RANK", "WORLD_SIZE"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"],
    ["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE"],
    // MPICH, Intel MPI.
    ["PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"],
    ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"],
    // An indexed job of Kubernetes: a pod is a rank.
    ["JOB_COMPLETION_INDEX", "", ""],
    ["LOCAL_RANK", "LOCAL_RANK", ""],
];

/// torchrun's own name comes first, and PMIx's (Open MPI) last, because it is a number that the launcher made up.
const NAMES: [&str; 6] =
    ["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "RAY_JOB_ID", "PMIX_NAMESPACE"];
/// What torchrun calls a job without a name.
const UNNAMED: &str = "none";
const LONGEST_NAME: usize = 256;

impl Job {
    pub fn within(env: &[(OsString, OsString)]) -> Job {
        let text = |name: &str| env.iter().find(|(key, _)| key == name)?.1.to_str();
        // RANK is a common word: only a number counts.
        let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = |name: &str| text(name).filter(is_number)?.parse().ok();
        let launcher = LAUNCHERS.iter().find(|[rank, ..]| number(rank).is_some());
        let [rank, local_rank, world_size] = launcher.map_or([None; 3], |names| names.map(number));
        let is_name = |text: &&str| !text.is_empty() && *text != UNNAMED && text.len() <= LONGEST_NAME;
        let name = NAMES.iter().find_map(|name| text(name).filter(is_name)).map(str::to_owned);
        Job { rank, local_rank, world_size, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> (Option<u32>, Option<u32>, Option<u32>, Option<String>) {
        let pair = |word: &str| word.split_once('=').map(|(name, value)| (name.into(), value.into()));
        let env: Vec<(OsString, OsString)> = text.split(' ').filter_map(pair).collect();
        let Job { rank, local_rank, world_size, name } = Job::within(&env);
        (rank, local_rank, world_size, name)
    }

    #[test]
    fn each_launcher_has_its_variables() {
        let named = |name: &str| Some(name.to_owned());
        let torchrun =
            "TORCHELASTIC_RUN_ID=none WORLD_SIZE=16 LOCAL_RANK=1 RANK=9 SLURM_PROCID=1 SLURM_JOB_ID=77";
        assert_eq!(job(torchrun), (Some(9), Some(1), Some(16), named("77")));
        let slurm = "SLURM_JOB_ID=77 SLURM_PROCID=4 SLURM_LOCALID=0 SLURM_NTASKS=8 RANK=general LOCAL_RANK=3";
        assert_eq!(job(slurm), (Some(4), Some(0), Some(8), named("77")));
        let mpi =
            "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_NAMESPACE=31";
        assert_eq!(job(mpi), (Some(1), Some(1), Some(2), named("31")));
        assert_eq!(job("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1"), (Some(3), Some(1), Some(4), None));
        assert_eq!(job("JOB_COMPLETION_INDEX=5"), (Some(5), None, None, None));
        assert_eq!(job("LOCAL_RANK=2"), (Some(2), Some(2), None, None));
    }

    #[test]
    fn only_numbers_count() {
        assert_eq!(job("RANK= WORLD_SIZE=8"), (None, None, None, None));
        assert_eq!(job("RANK=-1 LOCAL_RANK=x"), (None, None, None, None));
        assert_eq!(job("RANK=99999999999 SLURM_PROCID=3"), (Some(3), None, None, None));
    }
}
