{{- define "strata.uninstallName" -}}
{{- include "strata.fullname" . }}-uninstall
{{- end -}}

{{- define "strata.crdsName" -}}
{{- include "strata.fullname" . }}-crds
{{- end -}}

{{/* Annotations of what exists while a hook runs. Takes when, weight. */}}
{{- define "strata.hook" -}}
helm.sh/hook: {{ .when }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* The pod of a hook, without its indentation. Takes root, name, account, command, args; volume: a ConfigMap mounted as its path. */}}
{{- define "strata.hookPod" -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: true
enableServiceLinks: false
restartPolicy: Never
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
containers:
  - name: {{ .name }}
    image: {{ include "strata.operatorImage" .root }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command: [{{ .command }}]
    args:
      {{- toYaml .args | nindent 6 }}
    {{- with .root.Values.extraEnv }}
    env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    terminationMessagePolicy: FallbackToLogsOnError
    resources:
      requests:
        cpu: 20m
        memory: 64Mi
      limits:
        memory: 256Mi
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
    {{- with .volume }}
    volumeMounts:
      - name: {{ $.name }}
        mountPath: {{ .path }}
        readOnly: true
    {{- end }}
{{- with .volume }}
volumes:
  - name: {{ $.name }}
    configMap:
      name: {{ .configMap }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
