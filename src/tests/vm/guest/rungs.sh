# RUNGS: each records the same work; "ladder" is what a user gets. MORE: words for each.
truth=/proc/driver/nvidia/standin_counts
for rung in $RUNGS; do
    only="--kernel-backend=$rung"
    if [ "$rung" = ladder ]; then only=; fi
    echo reset > $truth
    gpurec --kernel $MORE $only -o /out/$rung.jsonl -- sh /vm/work.sh > /out/$rung.txt 2>&1
    echo "$rung $? at $(cut -d' ' -f1 /proc/uptime) s"
    cp $truth /out/$rung.truth
done
