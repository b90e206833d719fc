module flyball.dev/hack/crds

go 1.26.0

require (
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.5.0
	sigs.k8s.io/lws v0.8.0
)
