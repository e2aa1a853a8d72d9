package page

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// User is the user name of the page at the API server. It may read what the page shows, and write nothing.
const User = "system:volplane:page"

// RBAC returns the rights of User. Secrets are not among them, so that no mistake can show one.
func RBAC() []runtime.Object {
	read := []string{"get", "list", "watch"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: User}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{corev1.GroupName}, Verbs: read, Resources: []string{
			"persistentvolumeclaims", "persistentvolumes", "pods", "nodes", "namespaces", "events",
		}},
		{APIGroups: []string{corev1.GroupName}, Verbs: read, Resources: []string{"configmaps"}},
		{APIGroups: []string{storagev1.GroupName}, Verbs: read, Resources: []string{"*"}},
		{APIGroups: []string{volume.GroupSnapshot}, Verbs: read, Resources: []string{"*"}},
	}}
	return []runtime.Object{role, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: User},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: User}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: User},
	}}
}

// Usage is how full a mounted volume is, in bytes.
type Usage struct{ Used, Available int64 }

// Plane is the control plane that a page shows.
type Plane struct {
	// Objects returns what is known of all objects.
	Objects func(context.Context) (state.Objects, error)
	// Changed returns a channel that is closed at the next change of what Objects returns, except for warnings and
	// intents, which the page follows on its own.
	Changed func() <-chan struct{}
	// Client reads objects as a whole, and events, as User.
	Client kubernetes.Interface
	// Usage returns how full the volumes are that are mounted on this host, by NAMESPACE/CLAIM.
	Usage func() map[string]Usage
	// Connected says, for each driver that was once connected, whether it is.
	Connected func() map[string]bool
	// Pace returns how many calls of each driver end in a second.
	Pace func() map[string]float64
}
