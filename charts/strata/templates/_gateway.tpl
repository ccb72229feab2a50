{{- define "strata.gatewayName" -}}
{{- include "strata.fullname" . }}-gateway
{{- end -}}

{{- define "strata.gatewaySelectorLabels" -}}
app.kubernetes.io/name: strata-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "strata.gatewayLabels" -}}
{{ include "strata.gatewaySelectorLabels" . }}
{{ include "strata.chartLabels" . }}
{{- end -}}

{{- define "strata.gatewayImage" -}}
{{- $registry := .Values.gateway.image.registry | default .Values.image.registry -}}
{{- include "strata.image" (dict "image" .Values.gateway.image "registry" $registry "appVersion" .Chart.AppVersion) -}}
{{- end -}}

{{/* Where clients of the gateway ask. */}}
{{- define "strata.gatewayUrl" -}}
http://{{ include "strata.gatewayName" . }}.{{ .Release.Namespace }}.svc{{ with .Values.gateway.service.port }}{{ if ne (int .) 80 }}:{{ . }}{{ end }}{{ end }}/v1
{{- end -}}

{{/* What the gateway's sidecar may do where models are. */}}
{{- define "strata.gatewayRules" -}}
- apiGroups: [strata.ai]
  resources: [stratamodels]
  verbs: [list, watch]
# Those that models name in spec.service.apiKeysSecretRef; RBAC cannot say so.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end -}}
