"""Reads an export of --otlp with the official protobufs. In: a file with the body of one export. Out: a line for each
series, in the format of a scrape. Needs opentelemetry-proto."""
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE


def labels(point, more=()):
    pairs = [(one.key, one.value.string_value) for one in point.attributes] + list(more)
    return "{" + ",".join(f'{name}="{value}"' for name, value in pairs) + "}"


def number(point):
    return point.as_int if point.WhichOneof("value") == "as_int" else f"{point.as_double:.9f}"


def main():
    with open(sys.argv[1]) as body:
        # Parse fails on a field that the protobufs do not define.
        request = json_format.Parse(body.read(), ExportMetricsServiceRequest())
    (resource,) = request.resource_metrics
    names = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert names["service.name"] == "gpurec" and names["host.name"], names
    (scope,) = resource.scope_metrics
    for metric in scope.metrics:
        kind = metric.WhichOneof("data")
        data = getattr(metric, kind)
        if kind != "gauge":
            assert data.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE, metric
        for point in data.data_points:
            assert point.time_unix_nano >= point.start_time_unix_nano > 0 or kind == "gauge", metric
            if kind == "histogram":
                assert len(point.bucket_counts) == len(point.explicit_bounds) + 1, metric
                count = 0
                for bound, calls in zip([*point.explicit_bounds, "+Inf"], point.bucket_counts):
                    count += calls
                    print(f"{metric.name}_bucket{labels(point, [('le', bound)])} {count}")
                assert count == point.count, metric
                print(f"{metric.name}_count{labels(point)} {point.count}")
                print(f"{metric.name}_sum{labels(point)} {point.sum:.9f}")
            else:
                total = "_total" if kind == "sum" else ""
                print(f"{metric.name}{total}{labels(point)} {number(point)}")


main()
