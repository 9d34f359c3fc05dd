# BACKENDS: for each, what a request costs without gpurec, with it, and without again. Prints kernel,backend,ns_none,ns_with,
# ns_added,ratio; ns_none is the mean of before and after.
kernel=$(uname -r)
echo "kernel,backend,ns_none,ns_with,ns_added,ratio"
for backend in $BACKENDS; do
    before=$(./cost 20000)
    gpurec --kernel --kernel-backend="$backend" -o /out/$backend.jsonl -- sh -c './cost 20000 > /out/with' > /out/$backend.txt 2>&1
    with=$(cat /out/with)
    after=$(./cost 20000)
    grep -q '"'"$backend"'":' /out/$backend.jsonl || continue
    echo "$before $after $with" | awk -v k="$kernel" -v r="$backend" '{
        none = ($1 + $2) / 2; printf "%s,%s,%.0f,%d,%.0f,%.2f\n", k, r, none, $3, $3 - none, $3 / none }'
    echo "$backend: before $before, with $with, after $after; $(tail -n 1 /out/$backend.jsonl)" >> /out/detail
    rm -f /out/$backend.jsonl
done
