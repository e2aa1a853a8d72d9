{{- define "volplane.name" -}}
{{- default .Values.driver.name .Values.nameOverride -}}
{{- end }}

{{- /* The driver's name as leases have it. */ -}}
{{- define "volplane.dashed" -}}
{{- .Values.driver.name | replace "." "-" -}}
{{- end }}

{{- /* The same, short enough for the name of every kind of object. */ -}}
{{- define "volplane.base" -}}
{{- $dashed := include "volplane.dashed" . -}}
{{- if gt (len $dashed) 40 -}}
{{- printf "%s-%s" (regexReplaceAll "-+$" (trunc 31 $dashed) "") (sha256sum .Values.driver.name | trunc 8) -}}
{{- else -}}
{{- $dashed -}}
{{- end -}}
{{- end }}

{{- define "volplane.fullname" -}}
{{- default (include "volplane.base" .) .Values.fullnameOverride -}}
{{- end }}

{{- define "volplane.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- /* An image, of its values and its usual tag. */ -}}
{{- define "volplane.image" -}}
{{- $image := first . -}}
{{- $tag := default (last .) $image.tag -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else if $tag -}}
{{- printf "%s:%s" $image.repository $tag -}}
{{- else -}}
{{- $image.repository -}}
{{- end -}}
{{- end }}

{{- define "volplane.socketDir" -}}
{{- default (printf "%s/plugins/%s" .Values.kubeletDir .Values.driver.name) .Values.socketDir -}}
{{- end }}

{{- define "volplane.roleName" -}}
{{- printf "%s-%s" (include "volplane.fullname" .) (eq .Values.shape "daemonset" | ternary "node" "controller") -}}
{{- end }}

{{- define "volplane.controllerAccount" -}}
{{- default (printf "%s-controller" (include "volplane.fullname" .)) .Values.serviceAccount.controller -}}
{{- end }}

{{- define "volplane.nodeAccount" -}}
{{- default (printf "%s-node" (include "volplane.fullname" .)) .Values.serviceAccount.node -}}
{{- end }}

{{- /* The account of the controllers. */ -}}
{{- define "volplane.account" -}}
{{- if eq .Values.shape "daemonset" -}}
{{- include "volplane.nodeAccount" . -}}
{{- else -}}
{{- include "volplane.controllerAccount" . -}}
{{- end -}}
{{- end }}

{{- /* Not empty if a leader is elected. */ -}}
{{- define "volplane.elects" -}}
{{- if ne .Values.shape "statefulset" -}}
true
{{- end -}}
{{- end }}

{{- /* The names of the Secrets that may be read, by namespace. */ -}}
{{- define "volplane.secrets" -}}
{{- $in := dict -}}
{{- range .Values.rbac.secrets -}}
{{- $part := splitList "/" . -}}
{{- if eq (len $part) 2 -}}
{{- $_ := set $in (first $part) (append (default list (get $in (first $part))) (last $part)) -}}
{{- end -}}
{{- end -}}
{{- toJson $in -}}
{{- end }}

{{- /* Labels and annotations of what 'helm test' creates. */ -}}
{{- define "volplane.test" -}}
labels:
  app.kubernetes.io/component: test
  app.kubernetes.io/name: {{ include "volplane.name" . | quote }}
  app.kubernetes.io/instance: {{ .Release.Name | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
  helm.sh/chart: {{ include "volplane.chart" . | quote }}
  {{- with .Values.commonLabels }}{{ toYaml . | nindent 2 }}{{- end }}
annotations:
  helm.sh/hook: test
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- /* Not empty if the values mount something at /tmp beside the controllers. */ -}}
{{- define "volplane.ownTmp" -}}
{{- range concat .Values.driver.volumeMounts .Values.controller.driver.volumeMounts -}}
{{- if eq .mountPath "/tmp" }}true{{ end -}}
{{- end -}}
{{- end }}
