# Names and addresses of the local cluster. A second cluster beside the first: FLYBALL_CLUSTER_INDEX=1 and a folder of its own.
# shellcheck shell=bash disable=SC2034 # used by who sources it
index=${FLYBALL_CLUSTER_INDEX:-0}
[[ $index =~ ^[0-9]$ ]] || die "FLYBALL_CLUSTER_INDEX must be one digit, is '$index'"

suffix=$index
((index)) || suffix=
dir=${FLYBALL_CLUSTER_DIR:-/var/lib/flyball-cluster$suffix}
[[ $dir == /*/* && ${#dir} -le 48 ]] || die "FLYBALL_CLUSTER_DIR must be an absolute path below a top folder, of 48 characters at most (socket paths derive from it): $dir"

marker="flyball-cluster=$dir"      # an argument of the box's first process, by which it is found however the last run ended
cgroup=flyball-cluster$suffix
node="node-1"
link_host=flyball${index}h
link_box=flyball${index}b
host_ip=10.231.$index.1
node_ip=10.231.$index.2
pods_cidr=10.$((244 - index)).0.0/16
node_pods=10.$((244 - index)).0.0/24 # what the controller-manager hands to the first node
services_cidr=10.$((96 + index)).0.0/16
api_ip=10.$((96 + index)).0.1
dns_ip=10.$((96 + index)).0.10
prometheus_ip=10.$((96 + index)).0.90
kubeconfig=$dir/kubeconfig
images=$dir/images # containerd's store: the one thing that outlives `down`, because importing the engine takes minutes
daemons=(etcd containerd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy)
