#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a plan on 2 nodes with 8 ranks each. Submit with: sbatch slurm.sh plan.weft /path/to/data [options of weft run]
# A job that Slurm starts again after a node has failed (sbatch --requeue) continues with the options
#   --checkpoint FILE --checkpoint-every N --resume auto
#SBATCH --job-name=weft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
set -euo pipefail
plan=$1
data=$2
shift 2

# The fast network, where a node has several: patterns of interfaces, as `ip link` names them.
# export WEFT_IFNAME='ib*,hsn*'
# Nodes that have to boot or load the plan first are waited for.
export WEFT_CONNECT_TIMEOUT=120

# With PMIx, srun tells each rank who it is, where rank 0 is, and the job's secret: nothing else to set.
if srun --mpi=list 2>&1 | grep -q pmix; then
  exec srun --mpi=pmix weft run "$plan" --data "$data" "$@"
fi

# Without: a file on a file system that all nodes see. Rank 0 writes where it listens and a secret into it, readable by
# this user only, and takes it away when all have come.
export WEFT_ADDRESS="file://$SLURM_SUBMIT_DIR/.weft-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
export WEFT_WORLD_SIZE=$SLURM_NTASKS
# shellcheck disable=SC2016 # each task expands its own number
exec srun --mpi=none bash -c 'export WEFT_RANK=$SLURM_PROCID; exec weft run "$0" --data "$@"' "$plan" "$data" "$@"
