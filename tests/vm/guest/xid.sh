# A flight recorder that serves metrics records one Xid, and nothing else of nvidia.ko.
within() {
    for _ in $(seq 300); do
        if "$@"; then return; fi
        usleep 100000
    done
    echo "not within half a minute: $*"
}
gpurec --all --metrics 9400 --last 60s --dump-on xid -o /out/xid.jsonl > /out/xid.txt 2>&1 &
recorder=$!
within wget -qO /dev/null http://127.0.0.1:9400/metrics
echo 'xid 79 GPU has fallen off the bus' > /proc/driver/nvidia/standin_counts
within test -e /out/xid-1-xid.jsonl
wget -qO /out/xid.metrics http://127.0.0.1:9400/metrics
kill -INT $recorder
wait $recorder
echo "xid $? at $(cut -d' ' -f1 /proc/uptime) s"
