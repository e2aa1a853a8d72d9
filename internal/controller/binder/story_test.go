package binder

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
)

// TestStories plays testdata/*.txt. "serve DRIVER" has a provisioner of the same process serve requests.
func TestStories(t *testing.T) {
	story.Run(t, "testdata", func(s *story.Scene) story.Cast {
		requests := controller.NewRequests()
		serve := func(args []string) error {
			requests.Serve(func(driver, _ string) bool { return driver == args[0] }, func(claim types.UID) {
				s.Note("asks " + requests.Asked(claim) + " in this process for a volume for claim " + string(claim))
			})
			return nil
		}
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller { return New(env, requests) },
			Commands:   map[string]func([]string) error{"serve": serve},
		}
	})
}
