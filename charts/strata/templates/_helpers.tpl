{{/* Name of all objects: the release's name, with the chart's where that does not hold it. */}}
{{- define "strata.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "strata.selectorLabels" -}}
app.kubernetes.io/name: strata-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "strata.chartLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "strata.labels" -}}
{{ include "strata.selectorLabels" . }}
{{ include "strata.chartLabels" . }}
{{- end -}}

{{- define "strata.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "strata.fullname" .) -}}
{{- end -}}

{{/* A reference to an image: registry/repository@digest or registry/repository:tag. Takes image, registry, appVersion. */}}
{{- define "strata.image" -}}
{{- with .registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .appVersion }}{{ end -}}
{{- end -}}

{{- define "strata.operatorImage" -}}
{{- include "strata.image" (dict "image" .Values.image "registry" .Values.image.registry "appVersion" .Chart.AppVersion) -}}
{{- end -}}

{{- define "strata.engineImage" -}}
{{- $registry := .Values.engineImage.registry | default .Values.image.registry -}}
{{- include "strata.image" (dict "image" .Values.engineImage "registry" $registry "appVersion" .Chart.AppVersion) -}}
{{- end -}}

{{- define "strata.agentName" -}}
{{- include "strata.fullname" . }}-agent
{{- end -}}

{{- define "strata.agentSelectorLabels" -}}
app.kubernetes.io/name: strata-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "strata.agentLabels" -}}
{{ include "strata.agentSelectorLabels" . }}
{{ include "strata.chartLabels" . }}
{{- end -}}

{{/* Where monitors of either kind say what is scraped. */}}
{{- define "strata.monitorEndpoints" -}}
{{ eq .Values.monitors.kind "PodMonitor" | ternary "podMetricsEndpoints" "endpoints" }}
{{- end -}}

{{/* Metrics. Probes come from the node itself, which no policy shuts out. */}}
{{- define "strata.metricsIngress" -}}
- ports:
    - {port: 8080, protocol: TCP}
  {{- with .Values.networkPolicy.metricsFrom }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* DNS and the API server, whose address no selector knows. */}}
{{- define "strata.apiServerEgress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.apiServerTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Models' pods, at the port on which the operator has every engine listen. */}}
{{- define "strata.modelsEgress" -}}
- to:
    - namespaceSelector: {}
      podSelector:
        matchExpressions:
          - {key: strata.ai/model, operator: Exists}
  ports:
    - {port: 8000, protocol: TCP}
{{- end -}}

{{/* What the operator may do where models are: in the whole cluster, or in the namespaces that it watches. */}}
{{- define "strata.modelRules" -}}
# patch: the finalizer of models that want something of their nodes.
- apiGroups: [strata.ai]
  resources: [stratamodels]
  verbs: [get, list, watch, patch]
- apiGroups: [strata.ai]
  resources: [stratamodels/status]
  verbs: [patch]
# Owner references that block the owner's deletion need this where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [strata.ai]
  resources: [stratamodels/finalizers]
  verbs: [update]
# A model's children. There is no delete: they go with their owner.
- apiGroups: [""]
  resources: [serviceaccounts, services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# What is tried before a pod that serves is stopped for a new spec.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, create, patch]
{{- if .Values.monitors.models }}
# Where Prometheus's operator is installed.
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, servicemonitors]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- if .Values.routes.enabled }}
# What leads to models from outside; delete: what a model's spec asks for no more.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
# Why a pod does not start.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Pods that cannot serve leave a node whose cards are not healthy.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
{{- end -}}
