package volumes

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// tokenAge bounds how old a token becomes before a new one is asked for, as
// does four fifths of its life.
const tokenAge = 24 * time.Hour

// tokens keeps the service account tokens of the Pods of drivers that are
// called again and again, in memory only.
type tokens struct {
	mu   sync.Mutex
	kept map[tokenKey]token
}

type tokenKey struct {
	pod, audience string
	seconds       int64
}

type token struct {
	status authenticationv1.TokenRequestStatus
	renew  time.Time
}

// get returns a token that is bound to the Pod, and asks for a new one in time
// before the one at hand ends.
func (t *tokens) get(
	ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, r storagev1.TokenRequest,
) (authenticationv1.TokenRequestStatus, error) {
	key := tokenKey{string(pod.UID), r.Audience, ptr.Deref(r.ExpirationSeconds, 0)}
	now := time.Now()
	t.mu.Lock()
	have, ok := t.kept[key]
	t.mu.Unlock()
	if ok && now.Before(have.renew) {
		return have.status, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: r.ExpirationSeconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		},
	}}
	if r.Audience != "" {
		request.Spec.Audiences = []string{r.Audience}
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	got, err := client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.TokenRequestStatus{},
			fmt.Errorf("token of service account %s/%s for audience %q: %w", pod.Namespace, account, r.Audience, err)
	}
	life := lifeOf(got, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept == nil {
		t.kept = map[tokenKey]token{}
	}
	t.kept[key] = token{got.Status, now.Add(min(life*4/5, tokenAge))}
	return got.Status, nil
}

// lifeOf returns how long a new token lives. The API server says it in seconds
// and as the end: the end is by its clock, and this host has another one.
func lifeOf(r *authenticationv1.TokenRequest, now time.Time) time.Duration {
	if seconds := ptr.Deref(r.Spec.ExpirationSeconds, 0); seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return r.Status.ExpirationTimestamp.Sub(now)
}

// forget drops the tokens of a Pod.
func (t *tokens) forget(podUID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.kept, func(k tokenKey, _ token) bool { return k.pod == podUID })
}
