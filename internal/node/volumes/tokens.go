package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// maxTokenAge is the age at which a token is renewed, unless four fifths of its lifetime are over first.
const maxTokenAge = 24 * time.Hour

// tokens caches the service account tokens of Pods, in memory only.
type tokens struct {
	mu    sync.Mutex
	byKey map[tokenKey]token
}

type tokenKey struct {
	pod, audience string
	seconds       int64
}

type token struct {
	status authenticationv1.TokenRequestStatus
	renew  time.Time
}

// get returns a token that is bound to the Pod: the cached one, or a new one if that must be renewed.
func (t *tokens) get(
	ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, r storagev1.TokenRequest,
) (authenticationv1.TokenRequestStatus, error) {
	key := tokenKey{string(pod.UID), r.Audience, ptr.Deref(r.ExpirationSeconds, 0)}
	now := time.Now()
	t.mu.Lock()
	cached, ok := t.byKey[key]
	t.mu.Unlock()
	if ok && now.Before(cached.renew) {
		return cached.status, nil
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
	account := cmp.Or(pod.Spec.ServiceAccountName, "default")
	issued, err := client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, request,
		metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.TokenRequestStatus{},
			fmt.Errorf("token of service account %s/%s for audience %q: %w", pod.Namespace, account, r.Audience, err)
	}
	lifetime := lifetimeOf(issued, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byKey == nil {
		t.byKey = map[tokenKey]token{}
	}
	t.byKey[key] = token{issued.Status, now.Add(min(lifetime*4/5, maxTokenAge))}
	return issued.Status, nil
}

// lifetimeOf returns the lifetime of a new token. The number of seconds is preferred to the time of
// expiration, because the clock of the API server may differ from that of this host.
func lifetimeOf(r *authenticationv1.TokenRequest, now time.Time) time.Duration {
	if seconds := ptr.Deref(r.Spec.ExpirationSeconds, 0); seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return r.Status.ExpirationTimestamp.Sub(now)
}

// forget deletes the tokens of a Pod.
func (t *tokens) forget(podUID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byKey, func(k tokenKey, _ token) bool { return k.pod == podUID })
}

var errRecordLost = errors.New("the journal's record of it was lost, and its object is gone")

// SecretValues returns the values of the Secrets that the journal says a driver received for a volume, or for all of
// its volumes if the id is empty. It fails if one of them can no longer be read.
func (p *shared) SecretValues(ctx context.Context, driver, volumeID string) ([]string, error) {
	var out []string
	read := map[decide.SecretRef]bool{}
	for _, r := range p.recordsOf(driver, volumeID) {
		if r.SecretsUnknown {
			return nil, fmt.Errorf("what volume %s was mounted with: %w", cmp.Or(r.Volume, r.Handle), errRecordLost)
		}
		for _, ref := range r.Secrets() {
			if read[ref] {
				continue
			}
			data, err := kube.SecretData(ctx, p.Client, &corev1.SecretReference{Namespace: ref.Namespace, Name: ref.Name})
			if err != nil {
				return nil, fmt.Errorf("what volume %s was mounted with: %w", r.Volume, err)
			}
			read[ref], out = true, append(out, slices.Collect(maps.Values(data))...)
		}
	}
	return out, nil
}

// recordsOf returns the record of a volume, if any, or those of all volumes of the driver if the id is empty.
func (p *shared) recordsOf(driver, volumeID string) []*decide.Record {
	if volumeID == "" {
		return slices.DeleteFunc(p.Journal.List(), func(r *decide.Record) bool { return r.Driver != driver })
	}
	if r := p.Journal.Get(volume.Key(driver, volumeID)); r != nil {
		return []*decide.Record{r}
	}
	return nil
}
