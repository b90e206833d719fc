# The cluster's certificates and kubeconfigs: one CA, one key pair per identity.
# shellcheck shell=bash disable=SC2154

pki_make() (
  cd "$dir/pki" || exit
  printf '[req]\ndistinguished_name=dn\n[dn]\n' >openssl.cnf
  local new=(openssl req -x509 -config openssl.cnf -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650)
  "${new[@]}" -keyout ca.key -out ca.crt -subj /CN=flyball-ca \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null

  cert() { # NAME SUBJECT [ALTERNATIVE-NAMES]
    local extra=()
    [[ -z ${3:-} ]] || extra=(-addext "subjectAltName=$3")
    "${new[@]}" -CA ca.crt -CAkey ca.key -keyout "$1.key" -out "$1.crt" -subj "$2" -addext basicConstraints=CA:FALSE \
      -addext keyUsage=digitalSignature -addext extendedKeyUsage=serverAuth,clientAuth "${extra[@]}" 2>/dev/null
  }
  cert etcd /CN=etcd IP:127.0.0.1
  cert apiserver-etcd /CN=apiserver-etcd
  cert apiserver /CN=kube-apiserver \
    "IP:127.0.0.1,IP:$node_ip,IP:$api_ip,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
  cert apiserver-kubelet /CN=kube-apiserver-kubelet-client
  cert kubelet-serving "/CN=system:node:$node/O=system:nodes" "IP:$node_ip,DNS:$node"
  cert kubelet "/O=system:nodes/CN=system:node:$node"
  cert admin /O=system:masters/CN=admin
  cert controller-manager /CN=system:kube-controller-manager
  cert scheduler /CN=system:kube-scheduler
  cert proxy /CN=system:kube-proxy
  openssl ecparam -name prime256v1 -genkey -noout -out sa.key
  openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
  chmod 0600 ./*.key

  local name
  for name in kubelet controller-manager scheduler proxy; do kubeconfig_write "$name" "$dir/conf/$name.kubeconfig"; done
  kubeconfig_write admin "$kubeconfig"
)

kubeconfig_write() { # IDENTITY FILE
  (umask 077 && cat >"$2") <<YAML
apiVersion: v1
kind: Config
current-context: flyball
clusters: [{name: flyball, cluster: {server: "https://$node_ip:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
contexts: [{name: flyball, context: {cluster: flyball, user: $1}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
YAML
}
