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
{{ include "flyball.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "flyball.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "flyball.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "flyball.signingKeySecret" -}}
{{- default (printf "%s-signing-key" (include "flyball.fullname" .)) .Values.signingKey.existingSecret -}}
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

{{- /* Watched namespaces, separated by commas; * for all. */ -}}
{{- define "flyball.namespaces" -}}
{{- if eq .Values.watch.scope "Cluster" -}}
*
{{- else -}}
{{- join "," (default (list .Release.Namespace) .Values.watch.namespaces) -}}
{{- end -}}
{{- end -}}

{{- /* What the operator may do where it watches; flyball_operator.kube.resources asks for exactly this. */ -}}
{{- define "flyball.watchRules" -}}
- apiGroups: [serving.flyball.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [serving.flyball.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
