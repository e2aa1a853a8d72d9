package status

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/decide/diskspace"
)

// TestRoom: status shows the space that a control plane reports, and nothing if it
// reports none.
func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   []string
	}{
		"room": {
			200,
			`{"used":20971520,"size":31457280,"limit":2147483648,"free":1073741824,"total":10737418240,"reserve":167772160}`,
			[]string{"20 MiB of 2.0 GiB used, file of 30 MiB", "1.0 GiB of 10 GiB free, 160 MiB in reserve"},
		},
		"an etcd of others": {
			200, `{"used":20971520,"size":31457280,"limit":2147483648,"members":{"all":3,"answer":2,"prefix":"/volplane/here"}}`,
			[]string{"20 MiB of 2.0 GiB used", "an etcd that others run, keys below /volplane/here; 2 of 3 members answer"},
		},
		"full": {
			200, `{"total":1,"refuses":true,"reason":"DiskFull","message":"no room"}`, []string{"DiskFull: no room"},
		},
		"no such path": {404, "404 page not found", nil},
		"forbidden":    {403, "{}", nil},
		"another's":    {200, "ok", nil},
		"empty":        {200, "{}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != diskspace.Path {
					t.Errorf("asked for %s", r.URL.Path)
				}
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			printRoom(t.Context(), &out, client)
			if (out.Len() > 0) != (c.want != nil) {
				t.Errorf("shown: %q", &out)
			}
			for _, part := range c.want {
				if !strings.Contains(out.String(), part) {
					t.Errorf("%q is not in %q", part, &out)
				}
			}
			r := shell.Facts(client)
			if err := r.ReadRoom(t.Context()); err != nil || (r.Full != nil) != (name == "full") {
				t.Errorf("why is told %+v, %v", r.Full, err)
			}
		})
	}
}
