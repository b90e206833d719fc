// Command gateway is the endpoint picker of the Gateway API inference extension, with one scorer more: by any metric of the pods, the higher
// the better. The extension's own scorers know a few metrics by name, and prefer less of each.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"

	ctrl "sigs.k8s.io/controller-runtime"

	"sigs.k8s.io/gateway-api-inference-extension/cmd/epp/runner"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/datalayer/source/metrics"
)

const metricScorerType = "metric-scorer"

// metricScorer reads a metric of each pod as an extractor of the data source of metrics, and scores pods by it between the least and the
// most that any candidate has. A pod without the metric scores 0.
type metricScorer struct {
	name   plugin.TypedName
	metric string
}

type value float64

func (v value) Clone() datalayer.Cloneable { return v }

func newMetricScorer(name string, parameters json.RawMessage, _ plugin.Handle) (plugin.Plugin, error) {
	var asked struct {
		Metric string `json:"metric"`
	}
	if err := json.Unmarshal(parameters, &asked); err != nil {
		return nil, fmt.Errorf("parameters of %s: %w", name, err)
	}
	if asked.Metric == "" {
		return nil, errors.New(metricScorerType + " needs the name of a metric")
	}
	return &metricScorer{plugin.TypedName{Type: metricScorerType, Name: name}, asked.Metric}, nil
}

func (s *metricScorer) TypedName() plugin.TypedName { return s.name }

func (s *metricScorer) ExpectedInputType() reflect.Type { return metrics.PrometheusMetricType }

func (s *metricScorer) Category() scheduling.ScorerCategory { return scheduling.Distribution }

func (s *metricScorer) Extract(_ context.Context, data any, endpoint datalayer.Endpoint) error {
	families, ok := data.(metrics.PrometheusMetricMap)
	if !ok {
		return fmt.Errorf("%s is given %T", s.name.Name, data)
	}
	seen := value(math.NaN())
	if found := families[s.metric].GetMetric(); len(found) > 0 {
		seen = value(found[0].GetGauge().GetValue())
	}
	endpoint.GetAttributes().Put(s.metric, seen)
	return nil
}

func (s *metricScorer) Score(
	_ context.Context, _ *scheduling.CycleState, _ *scheduling.LLMRequest, endpoints []scheduling.Endpoint,
) map[scheduling.Endpoint]float64 {
	values := make(map[scheduling.Endpoint]float64, len(endpoints))
	least, most := math.Inf(1), math.Inf(-1)
	for _, endpoint := range endpoints {
		attribute, _ := endpoint.Get(s.metric)
		if seen, ok := attribute.(value); ok && !math.IsNaN(float64(seen)) {
			values[endpoint] = float64(seen)
			least, most = min(least, float64(seen)), max(most, float64(seen))
		}
	}
	scores := make(map[scheduling.Endpoint]float64, len(endpoints))
	for _, endpoint := range endpoints {
		seen, ok := values[endpoint]
		switch {
		case !ok:
			scores[endpoint] = 0
		case most == least:
			scores[endpoint] = 1
		default:
			scores[endpoint] = (seen - least) / (most - least)
		}
	}
	return scores
}

func main() {
	plugin.Register(metricScorerType, newMetricScorer)
	if err := runner.NewRunner().Run(ctrl.SetupSignalHandler()); err != nil {
		os.Exit(1)
	}
}
