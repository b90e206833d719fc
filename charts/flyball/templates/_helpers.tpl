{{- define "flyball.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* Short enough for every suffix below. */ -}}
{{- define "flyball.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- else if contains (include "flyball.name" .) .Release.Name -}}
{{- .Release.Name | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "flyball.name" .) | trunc 46 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Of cluster-wide objects: two releases of one name in two namespaces must not meet. */ -}}
{{- define "flyball.clustername" -}}
{{- printf "%s-%s" .Release.Namespace (include "flyball.fullname" .) | trunc 110 | trimSuffix "-" -}}
{{- end -}}

{{- define "flyball.selector" -}}
app.kubernetes.io/name: {{ include "flyball.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "flyball.labels" -}}
{{ include "flyball.labelsWith" (dict "root" . "own" dict) }}
{{- end -}}

{{- /* `own`: labels that other values give an object. Where a key is in both, they win over the common ones. */ -}}
{{- define "flyball.labelsWith" -}}
{{ include "flyball.selector" .root }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with mergeOverwrite (dict) (default dict .root.Values.commonLabels) (default dict .own) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Of the pod of helm test: the operator's selector must not find it. */ -}}
{{- define "flyball.testLabels" -}}
app.kubernetes.io/name: {{ include "flyball.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end -}}

{{- /* Of the account and the rights of that pod. */ -}}
{{- define "flyball.testMetadata" -}}
labels:
  {{- include "flyball.testLabels" . | nindent 2 }}
  {{- with .Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  helm.sh/hook: test
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "flyball.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "flyball.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* The Secret that the operator keeps the key in, where none is given. */ -}}
{{- define "flyball.signingKeySecret" -}}
{{- printf "%s-signing-key" (include "flyball.fullname" .) -}}
{{- end -}}

{{- /* Reference of an image: dict "image" … "registry" … "root" $ */ -}}
{{- define "flyball.image" -}}
{{- $registry := default .registry .image.registry -}}
{{- $name := ternary (printf "%s/%s" $registry .image.repository) .image.repository (ne $registry "") -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* Namespaces that the chart may write to, separated by commas; * for all. The watched ones, but for scope Selector. */ -}}
{{- define "flyball.namespaces" -}}
{{- if eq .Values.watch.scope "Cluster" -}}
*
{{- else if eq .Values.watch.scope "Selector" -}}
{{- join "," .Values.watch.namespaces -}}
{{- else -}}
{{- join "," (default (list .Release.Namespace) .Values.watch.namespaces) -}}
{{- end -}}
{{- end -}}

{{- /* watch.namespaceSelector as kubectl takes a label selector. */ -}}
{{- define "flyball.namespaceSelector" -}}
{{- $parts := list -}}
{{- range $key, $value := .Values.watch.namespaceSelector.matchLabels -}}
{{- $parts = append $parts (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- range .Values.watch.namespaceSelector.matchExpressions -}}
{{- if eq .operator "Exists" -}}
{{- $parts = append $parts .key -}}
{{- else if eq .operator "DoesNotExist" -}}
{{- $parts = append $parts (printf "!%s" .key) -}}
{{- else -}}
{{- $values := required (printf "watch.namespaceSelector: %s %s needs values" .key .operator) .values -}}
{{- $parts = append $parts (printf "%s %s (%s)" .key (lower .operator) (join "," $values)) -}}
{{- end -}}
{{- end -}}
{{- required "watch.namespaceSelector selects all namespaces; accepted: at least one label, or watch.scope Cluster" (join "," $parts) -}}
{{- end -}}

{{- /* Fails where values of prometheus contradict each other. */ -}}
{{- define "flyball.prometheusCheck" -}}
{{- with .Values.prometheus -}}
{{- $ways := list -}}
{{- if .bearerToken.secret }}{{ $ways = append $ways "prometheus.bearerToken.secret" }}{{ end -}}
{{- if .bearerToken.serviceAccount }}{{ $ways = append $ways "prometheus.bearerToken.serviceAccount" }}{{ end -}}
{{- if .basicAuth.secret }}{{ $ways = append $ways "prometheus.basicAuth.secret" }}{{ end -}}
{{- if gt (len $ways) 1 }}{{ fail (printf "%s are set; accepted: one of them" (join " and " $ways)) }}{{ end -}}
{{- if and .bearerToken.audience (not .bearerToken.serviceAccount) -}}
{{- fail "prometheus.bearerToken.audience needs prometheus.bearerToken.serviceAccount; accepted: both or none" -}}
{{- end -}}
{{- if ne (empty .basicAuth.username) (empty .basicAuth.secret) -}}
{{- fail "one of prometheus.basicAuth.username and prometheus.basicAuth.secret is set; accepted: both or none" -}}
{{- end -}}
{{- range $name, $from := dict "prometheus.headers" .headers "prometheus.tls.ca" .tls.ca -}}
{{- if and $from.secret $from.configMap -}}
{{- fail (printf "%s.secret and %s.configMap are set; accepted: one of them" $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and .tls.insecureSkipVerify (or .tls.ca.secret .tls.ca.configMap) -}}
{{- fail "prometheus.tls.insecureSkipVerify and prometheus.tls.ca are set; accepted: one of them" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The operator's settings for the files of flyball.prometheusSources. */ -}}
{{- define "flyball.prometheusEnvironment" -}}
{{- include "flyball.prometheusCheck" . -}}
{{- with .Values.prometheus -}}
{{- $files := dict -}}
{{- if or .bearerToken.secret .bearerToken.serviceAccount }}{{ $_ := set $files "BEARER_TOKEN" "token" }}{{ end -}}
{{- if .basicAuth.secret }}{{ $_ := set $files "PASSWORD" "password" }}{{ end -}}
{{- if or .headers.secret .headers.configMap }}{{ $_ := set $files "HEADERS" "headers" }}{{ end -}}
{{- if or .tls.ca.secret .tls.ca.configMap }}{{ $_ := set $files "CA" "ca.crt" }}{{ end -}}
{{- if .tls.clientCertificate.secret -}}
{{- $_ := set $files "CLIENT_CERT" "tls.crt" }}{{ $_ := set $files "CLIENT_KEY" "tls.key" -}}
{{- end -}}
{{- range $name, $file := $files }}
- name: FLYBALL_PROMETHEUS_{{ $name }}_FILE
  value: /etc/flyball-prometheus/{{ $file }}
{{- end }}
{{- with .basicAuth.username }}
- name: FLYBALL_PROMETHEUS_USERNAME
  value: {{ . | quote }}
{{- end }}
{{- if .tls.insecureSkipVerify }}
- name: FLYBALL_PROMETHEUS_INSECURE_SKIP_VERIFY
  value: "true"
{{- end }}
{{- end -}}
{{- end -}}

{{- /* Of the projected volume with what Prometheus is asked with; empty if nothing is needed. */ -}}
{{- define "flyball.prometheusSources" -}}
{{- with .Values.prometheus -}}
{{- with .bearerToken }}
{{- if .secret }}
- secret: {name: {{ .secret }}, items: [{key: {{ .key | quote }}, path: token}]}
{{- end }}
{{- if .serviceAccount }}
- serviceAccountToken:
    path: token
    expirationSeconds: 3600
    {{- with .audience }}
    audience: {{ . | quote }}
    {{- end }}
{{- end }}
{{- end }}
{{- with .basicAuth }}
{{- if .secret }}
- secret: {name: {{ .secret }}, items: [{key: {{ .key | quote }}, path: password}]}
{{- end }}
{{- end }}
{{- range $path, $from := dict "headers" .headers "ca.crt" .tls.ca }}
{{- with $from.secret }}
- secret: {name: {{ . }}, items: [{key: {{ $from.key | quote }}, path: {{ $path }}}]}
{{- end }}
{{- with $from.configMap }}
- configMap: {name: {{ . }}, items: [{key: {{ $from.key | quote }}, path: {{ $path }}}]}
{{- end }}
{{- end }}
{{- with .tls.clientCertificate }}
{{- if .secret }}
- secret:
    name: {{ .secret }}
    items: [{key: {{ .certKey | quote }}, path: tls.crt}, {key: {{ .keyKey | quote }}, path: tls.key}]
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* Of MutatingAdmissionPolicies: what the cluster serves, or by its version where nothing is known of that, as in helm template. */ -}}
{{- define "flyball.mutatingPolicyVersion" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- $served := .Capabilities.APIVersions -}}
{{- $absent := "inject.enabled needs MutatingAdmissionPolicies, which this cluster does not serve. Kubernetes 1.36 does; 1.34 and 1.35 do with the feature gate MutatingAdmissionPolicy and --runtime-config=admissionregistration.k8s.io/v1beta1=true" -}}
{{- if $served.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}
v1
{{- else if $served.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}
v1beta1
{{- else if $served.Has "v1/Pod" -}}
{{- fail $absent -}}
{{- else if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version -}}
v1
{{- else -}}
v1beta1
{{- end -}}
{{- end -}}

{{- /* Who may connect to engine pods; flyball_operator.reconcile.plan.network_policy reads it. */ -}}
{{- define "flyball.ingressPeers" -}}
{{- $operator := dict
  "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace))
  "podSelector" (dict "matchLabels" (include "flyball.selector" . | fromYaml)) -}}
{{- $prometheus := .Values.networkPolicy.prometheus -}}
{{- dict "api" (default list (concat .Values.networkPolicy.clients $prometheus)) "control" (prepend $prometheus $operator) | toJson -}}
{{- end -}}

{{- /* How services adopt a template by themselves; flyball_operator.reconcile.plan.adoption reads it. */ -}}
{{- define "flyball.adopt" -}}
{{- $policy := dict "maxConcurrent" .Values.adopt.maxConcurrent "after" (.Values.adopt.after | default "0s") -}}
{{- with .Values.adopt.window -}}
{{- if .start -}}
{{- $window := dict "start" .start "duration" .duration -}}
{{- if .days }}{{ $window = set $window "days" .days }}{{ end -}}
{{- $policy = set $policy "window" $window -}}
{{- end -}}
{{- end -}}
{{- $policy | toJson -}}
{{- end -}}

{{- /* What the operator may do where it watches: what flyball_operator.kube.resources asks for, its Lease, public keys. */ -}}
{{- define "flyball.watchRules" -}}
- apiGroups: [serving.flyball.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [serving.flyball.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
# Of models that are downloaded once. A claim is never deleted: garbage collection follows the service, or it stays.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, delete]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
# Of services over several nodes. The cluster may lack LeaderWorkerSets.
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, create, patch]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [list]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.networkPolicy.enabled }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
{{- end }}
# Of services with spec.gateway. The cluster may lack these kinds.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
# Which release looks after the namespace. What is created has no name yet as far as rights go.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [namespace.serving.flyball.dev]
  verbs: [get, update]
{{- if .Values.adapters.enabled }}
# The LoRA adapters of each service, and the public keys that engines accept. Names of the first are not known before:
# admissionPolicies.operator holds what is written to these.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch]
{{- else if not .Values.signingKey.existingSecret }}
# The public keys that engines accept. admissionPolicies.operator holds what is created to this name.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [flyball-public-keys]
  verbs: [get, patch]
{{- end }}
{{- end -}}

{{/* Whom our pods run as. */}}
{{- define "flyball.podSecurityContext" -}}
runAsNonRoot: true
{{- if not .Values.runAsAssignedUser }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}
