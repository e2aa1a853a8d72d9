package planes

import (
	"net/http"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/test/internal/upstream"
)

// asking returns the configuration of a client that uses one of the API servers, and the next one when that does not
// respond.
func (h *livingHosts) asking(first int) *rest.Config {
	config, turn := rest.CopyConfig(h.config), &turning{}
	for _, name := range h.names {
		turn.hosts = append(turn.hosts, addressOf(name)+":"+h.port)
	}
	turn.at.Store(int64(first))
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		turn.next = next
		return turn
	})
	return config
}

// turning sends requests to one of several hosts. After a failure it turns to the next one.
type turning struct {
	next  http.RoundTripper
	hosts []string
	at    atomic.Int64
}

// RoundTrip sends a request.
func (t *turning) RoundTrip(r *http.Request) (*http.Response, error) {
	at := t.at.Load()
	r = r.Clone(r.Context())
	r.URL.Host = t.hosts[int(at)%len(t.hosts)]
	r.Host = r.URL.Host
	answer, err := t.next.RoundTrip(r)
	if err != nil || answer.StatusCode >= http.StatusInternalServerError {
		t.at.CompareAndSwap(at, at+1)
	}
	return answer, err
}

// WrappedRoundTripper returns what sends the requests, for those who end them.
func (t *turning) WrappedRoundTripper() http.RoundTripper { return t.next }

// kinds are those of the objects that lives create.
func kinds() []schema.GroupVersionResource {
	core := corev1.SchemeGroupVersion
	return []schema.GroupVersionResource{
		core.WithResource("pods"), core.WithResource("persistentvolumeclaims"), upstream.Snapshots(),
	}
}

// deleteLate deletes the objects of lives that none of them has used. A request that was not answered in time may be
// carried out much later: by an API server that was suspended, or by etcd, which receives it when a connection is
// restored. The life has repeated it at another API server, and has deleted what that one created.
func (h *livingHosts) deleteLate() error {
	client, err := dynamic.NewForConfig(h.config)
	if err != nil {
		return err
	}
	for _, kind := range kinds() {
		objects := client.Resource(kind).Namespace("default")
		list, err := objects.List(h.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			if _, seen := h.seen.Load(o.GetUID()); seen || !strings.HasPrefix(o.GetName(), "life-") {
				continue
			}
			if err := objects.Delete(h.t.Context(), o.GetName(), metav1.DeleteOptions{}); ignoreNotFound(err) != nil {
				return err
			}
		}
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
