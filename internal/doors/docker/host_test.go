package docker

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/doors/users/userstest"
	"volplane.dev/volplane/internal/process/options"
)

const ns, node = userstest.Namespace, userstest.Node

// engine is a host, and a door between it and a container engine.
type engine struct {
	*userstest.Host
	t    *testing.T
	door *Door
	web  http.Handler
	stop context.CancelFunc
}

func newEngine(t *testing.T, objects ...runtime.Object) *engine {
	w := &engine{Host: userstest.New(t, annReferences, objects...), t: t}
	w.start()
	return w
}

// start starts a door, and an agent beside it.
func (w *engine) start() {
	ctx, stop := context.WithCancel(w.t.Context())
	w.stop = stop
	w.door = newDoor(options.DoorOptions{
		Namespace: ns, Node: node, Grace: 2 * time.Minute, Log: slog.New(slog.DiscardHandler),
	}, w.API, w.Kernel(), func(string) error { return nil })
	w.web = w.door.web()
	go w.door.users.Open(ctx, w.door.caches, w.door.ready)
	go w.Agent(ctx)
	synctest.Wait()
}

// call makes a call as an engine does, and returns its answer.
func (w *engine) call(path, body string) string {
	if !strings.Contains(path, ".") {
		path = "VolumeDriver." + path
	}
	r := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodPost, "/"+path, strings.NewReader(body)).WithContext(w.t.Context())
	w.web.ServeHTTP(r, request)
	text := strings.TrimSpace(r.Body.String())
	for _, p := range w.Pods() {
		text = strings.ReplaceAll(text, string(p.UID), "UID")
	}
	return fmt.Sprint(r.Code, " ", text)
}

// play does what the words of a step say, and returns what is to be seen of it.
func (w *engine) play(step string) string {
	switch {
	case step == "restart":
		w.stop()
		synctest.Wait()
		w.start()
	case !w.Play(step):
		path, body, _ := strings.Cut(step, " ")
		return w.call(path, body)
	}
	return w.State(hiddenMark)
}

func hiddenMark(c *corev1.PersistentVolumeClaim) string {
	if c.Annotations[annHidden] != "" {
		return " (hidden)"
	}
	return ""
}
