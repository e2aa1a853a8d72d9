// Package apiserver assembles the embedded API server: k8s.io/apiserver with
// the REST storages, strategies, validation, defaulting and storage admission
// plugins of k8s.io/kubernetes for the API groups that storage needs, with an etcd
// in the same process. kubectl notices no difference.
//
// Life cycle: Start opens the data directory, the certificate authority and etcd, starts the server, and returns when
// /readyz answers ok and the roles exist. Server.Stop ends requests, then the server, then etcd, and closes the
// directory. Only this package uses interfaces that Kubernetes may change between versions.
package apiserver

//go:generate go tool openapi-gen --output-dir ./openapi --output-pkg volplane.dev/volplane/standalone/apiserver/openapi --output-file zz_generated.openapi.go --report-filename /dev/null --go-header-file /dev/null k8s.io/api/authentication/v1 k8s.io/api/authorization/v1 k8s.io/api/coordination/v1 k8s.io/api/core/v1 k8s.io/api/events/v1 k8s.io/api/rbac/v1 k8s.io/api/storage/v1 k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1 k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/util/intstr k8s.io/apimachinery/pkg/version
