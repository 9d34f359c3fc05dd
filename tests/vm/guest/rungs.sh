# RUNGS: each records the same work; "ladder" is what a user gets. MORE: words for each.
# A kernel that preempts may pass over hits. gpurec says so then, which is kept to be looked at, and the work is done again.
truth=/proc/driver/nvidia/standin_counts
for rung in $RUNGS; do
    only="--kernel-backend=$rung"
    if [ "$rung" = ladder ]; then only=; fi
    for attempt in 1 2 3 4; do
        echo reset > $truth
        gpurec -v --kernel $MORE $only -o /out/$rung.jsonl -- sh /vm/work.sh > /out/$rung.txt 2>&1
        echo "$rung $? at $(cut -d' ' -f1 /proc/uptime) s"
        cp $truth /out/$rung.truth
        tail -n 1 /out/$rung.jsonl | grep -q 'were passed over' || break
        for kind in jsonl txt truth; do mv /out/$rung.$kind /out/$rung.passed$attempt.$kind; done
    done
done
