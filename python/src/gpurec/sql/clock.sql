coalesce(k.at_ns + cast(round((:ts - k.at_ns - k.offset_ns) / (1 + k.drift_ppm * 1e-6)) as bigint), :ts)
