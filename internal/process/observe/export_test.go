package observe

// Addresses returns where the server listens.
func (s *Server) Addresses() []string {
	var out []string
	for _, l := range s.listeners {
		out = append(out, l.Addr().String())
	}
	return out
}
