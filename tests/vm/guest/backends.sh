# BACKENDS: each records the same work; "ladder" is what a user gets. MORE: words for each.
# A kernel that preempts may pass over hits. gpurec says so then, which is kept to be looked at, and the work is done again.
truth=/proc/driver/nvidia/standin_counts
for backend in $BACKENDS; do
    only="--kernel-backend=$backend"
    if [ "$backend" = ladder ]; then only=; fi
    for attempt in 1 2 3 4; do
        echo reset > $truth
        gpurec -v --kernel $MORE $only -o /out/$backend.jsonl -- sh /vm/work.sh > /out/$backend.txt 2>&1
        echo "$backend $? at $(cut -d' ' -f1 /proc/uptime) s"
        cp $truth /out/$backend.truth
        tail -n 1 /out/$backend.jsonl | grep -q recursion_misses || break
        for kind in jsonl txt truth; do mv /out/$backend.$kind /out/$backend.passed$attempt.$kind; done
    done
done
gpurec -v --stacks=all $MORE -o /out/stacks.jsonl -- sh /vm/work.sh > /out/stacks.txt 2>&1
echo "stacks $? at $(cut -d' ' -f1 /proc/uptime) s"
cp $truth /out/stacks.truth
