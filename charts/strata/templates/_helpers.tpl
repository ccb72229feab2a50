{{/* Name of all objects: the release's name, with the chart's where that does not hold it. */}}
{{- define "strata.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "strata.selectorLabels" -}}
app.kubernetes.io/name: strata-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "strata.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "strata.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
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
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "strata.agentSelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "strata.uninstallName" -}}
{{- include "strata.fullname" . }}-uninstall
{{- end -}}
