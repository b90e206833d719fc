// The process that holds a pod's namespaces open in the local cluster.
module flyball.dev/hack/pause

go 1.26.0

tool flyball.dev/hack/pause
