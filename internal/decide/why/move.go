package why

import (
	"slices"

	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/state"
	"volplane.dev/volplane/internal/volume"
)

// moved tells of a volume or a claim, "namespace/name", that is not there, or not
// whole, because it is being moved between a Flex plugin and the bridge: whoever
// moves it deletes both and makes them anew.
func (w Walk) moved(subject, pv, claim string) (chain.Link, bool) {
	i := slices.IndexFunc(w.Moves, func(m state.Move) bool {
		return pv != "" && m.Volume == pv || claim != "" && m.Claim == claim
	})
	if i < 0 {
		return chain.Link{}, false
	}
	m := w.Moves[i]
	message := "volume " + m.Volume +
		" is being moved to the bridge, and that is not finished: `volplane flex migrate run " + m.Volume +
		"` goes on, `volplane flex migrate undo " + m.Volume + "` turns round"
	if m.Back {
		message = "volume " + m.Volume + " is being moved back from the bridge, and that is not finished: `volplane flex " +
			"migrate undo " + m.Volume + "` goes on"
	}
	return chain.New(subject, chain.Problem, volume.ReasonMigrating, message, "user"), true
}
