package up

import (
	"fmt"
	"net/http"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/page"

	"volplane.dev/volplane/internal/gather/world"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/process/options"
)

// optionalPage is the web page; Page is nil if it is off.
type optionalPage struct{ *page.Page }

// page returns the page, which shows nothing yet.
func (o Options) page() optionalPage {
	if o.Page == "" {
		return optionalPage{}
	}
	return optionalPage{page.New(o.Page, o.Log)}
}

// paths returns what the API server serves for it.
func (p optionalPage) paths() map[string]http.Handler {
	if p.Page == nil {
		return nil
	}
	return map[string]http.Handler{options.PagePath: p.Page}
}

// show returns the part that shows the control plane to browsers.
func (p optionalPage) show(
	server *apiserver.Server, world *world.World, metrics *observe.Registry,
) ([]lifecycle.Part, error) {
	if p.Page == nil {
		return nil, nil
	}
	client, err := kubernetes.NewForConfig(server.ClientConfig(page.User))
	if err != nil {
		return nil, fmt.Errorf("client of the page: %w", err)
	}
	p.Show(page.Plane{
		Objects: world.Objects, Changed: world.Changed, Client: client, Pace: metrics.Pace,
		Usage: func() map[string]page.Usage { return usage(metrics) },
		Connected: func() map[string]bool {
			out := map[string]bool{}
			metrics.Values(observe.DriverUp, func(value float64, labels ...string) { out[labels[0]] = value > 0 })
			return out
		},
	})
	return []lifecycle.Part{{Name: "page", Run: p.Run}}, nil
}

// usage returns how full the volumes are that this host's node agent has mounted.
func usage(metrics *observe.Registry) map[string]page.Usage {
	out := map[string]page.Usage{}
	metrics.Values(observe.VolumeUsed, func(value float64, labels ...string) {
		key := labels[0] + "/" + labels[1]
		out[key] = page.Usage{Used: int64(value), Available: out[key].Available}
	})
	metrics.Values(observe.VolumeAvailable, func(value float64, labels ...string) {
		key := labels[0] + "/" + labels[1]
		out[key] = page.Usage{Used: out[key].Used, Available: int64(value)}
	})
	return out
}
