#!/bin/sh
# Runs in each of two machines (guests.py). In: NAME, AHEAD, PPM, RANKS, WORLD and STEPS from /vm/settings; what both share.
# Out: the traces in /out; of the first machine, clocks-0 and clocks-1: the other clock before and after the job.
. /vm/settings
mkdir -p /shared
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none shared /shared
for device in /sys/bus/pci/devices/*; do
    if [ "$(cat "$device/vendor") $(cat "$device/device")" = "0x1af4 0x1110" ]; then memory=$device/resource2; fi
done
hostname "$NAME"
date -s "@$(($(date +%s) + AHEAD))" > /dev/null
adjtimex -q -f "$((PPM * 65536))" > /dev/null
clocks() { pingpong "$memory" "$([ "$NAME" = first ] && echo ask || echo answer)" 5 "$1" > "/out/clocks-$1"; }
clocks 0
export LD_LIBRARY_PATH=/vm STANDIN_NCCL_MEMORY=$memory STANDIN_NCCL=/shared WORLD_SIZE=$WORLD TORCHELASTIC_RUN_ID=guests
waited=
for rank in $RANKS; do
    RANK=$rank LOCAL_RANK=$((rank % 2)) gpurec -q -o '/out/%h-%r.jsonl' -- rank /shared "$STEPS" &
    waited="$waited $!"
done
status=0
for one in $waited; do wait "$one" || status=$?; done
clocks 1
exit "$status"
